"""The scheduler of baselines: fixed shapes trained from scratch, each tuned as schedules are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nasgrow.schedulers.base import CompleteScheduler, Start, Trials
from nasgrow.study.baselines import FINAL, BaselineSize, best_first
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trial_runs import SIZE
from nasgrow.study.trials import TrialRecord
from nasgrow.study.tuning import Values, key, tries


class BaselineScheduler(CompleteScheduler):
    """Tunes each baseline size. While one size waits for a result, the next one goes on.

    The final shape is first trained at all declared learning rates. Any other size starts from the best
    setting of the same shape under the study's own budget. The search's limits on trials and compute do not
    apply, because a verdict needs all baselines.

    Args:
        study: The study.
        trials: Its baselines so far.
        sizes: The sizes to tune.
        fixed: Its fixed-shape trials. A size that has the shape of one of them, under another
            budget, starts from the best setting that this shape has among them.
    """

    def __init__(
        self, study: ResolvedStudy, trials: Trials, sizes: Sequence[BaselineSize], fixed: Trials
    ) -> None:
        super().__init__(study, trials)
        self._sizes, self._fixed = sizes, fixed

    def suggest(self) -> Start | None:
        """Suggest the next setting of the first size that has one to try now; None if none has."""
        for size in self._sizes:
            values = self._next(size)
            if values is not None:
                return Start({SIZE: size.name, **self.study.tuning.parameters(values)}, size.name)
        return None

    def planned(self) -> int:
        """Return about how many trials there will be at least: those so far, and those still needed.

        For every size but the final shape it assumes that each tuned value has a lower and a higher
        neighbour. A size at a limit of the tuning needs fewer trials; once it is tuned, none.
        """
        tuning = self.study.tuning
        first, beside = len(tuning.first()), len(tuning.parameters(tuning.own))
        tried = Counter(trial.name for trial in self.counted())
        least = {
            size.name: first if size.name == FINAL else 1 + 2 * beside
            for size in self._sizes
            if not self._is_tuned(size)
        }
        return len(self.trials) + sum(max(0, many - tried[name]) for name, many in least.items())

    def _is_tuned(self, size: BaselineSize) -> bool:
        own = [trial for trial in self.counted() if trial.name == size.name]
        return bool(own) and all(trial.is_ended for trial in own) and self._next(size) is None

    def _next(self, size: BaselineSize) -> Values | None:
        """Return the next setting to try for a size; None if it is tuned, or waits for a running trial."""
        tuning = self.study.tuning
        own = [trial for trial in self.counted() if trial.name == size.name]
        tried, pending = tries(tuning, own)
        if size.name == FINAL:
            first = [values for values in tuning.first() if key(values) not in {*tried, *pending}]
            if first:
                return first[0]
        elif not own:
            return self._begin(size)
        return tuning.next(tried, pending)

    def _begin(self, size: BaselineSize) -> Values | None:
        """Return the first setting to try for a size under another budget.

        It is the best setting of the same shape under the study's budget; None if that has not finished.
        """
        same = [trial for trial in self.trials.values() if trial.name == size.of]
        fixed = next((trial for trial in self._fixed.values() if trial.label == size.of), None)
        if fixed is not None:
            same = [trial for trial in self._fixed.values() if trial.schedule == fixed.schedule]
        best: list[TrialRecord] = best_first(same)
        return self.study.tuning.values(best[0].parameters) if best else None


def is_tuned(scheduler: BaselineScheduler) -> bool:
    """Return whether a scheduler has nothing to suggest, and all its trials have ended."""
    return scheduler.suggest() is None and all(trial.is_ended for trial in scheduler.counted())
