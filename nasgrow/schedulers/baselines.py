"""The scheduler of baselines: shapes from scratch under their budgets, each tuned by the common procedure."""

from __future__ import annotations

from collections.abc import Sequence

from nasgrow.schedulers.base import CompleteScheduler, Start, Trials
from nasgrow.study.baselines import FINAL, BaselineSize, best_first
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trial_runs import SIZE
from nasgrow.study.trials import TrialRecord
from nasgrow.study.tuning import Values, key, tries


class BaselineScheduler(CompleteScheduler):
    """Tunes every size: the final shape at all declared learning rates first, others from a known best on.

    The limits of a search do not apply: a verdict needs all baselines.

    Args:
        study: The study.
        trials: Its baselines so far.
        sizes: The sizes to tune.
        fixed: Its fixed-shape trials, whose best settings those shapes begin with under other budgets.
    """

    def __init__(
        self, study: ResolvedStudy, trials: Trials, sizes: Sequence[BaselineSize], fixed: Trials
    ) -> None:
        super().__init__(study, trials)
        self._sizes, self._fixed = sizes, fixed

    def suggest(self) -> Start | None:
        """The next size and setting, in the order of the sizes."""
        for size in self._sizes:
            values = self._next(size)
            if values is not None:
                return Start({SIZE: size.name, **self.study.tuning.parameters(values)}, size.name)
        return None

    def _next(self, size: BaselineSize) -> Values | None:
        """The setting to try next for a size; None if it is tuned, or something has to end first."""
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
        """The best setting of the same shape under the study's budget, or of the final shape."""
        same = [trial for trial in self.trials.values() if trial.name == size.of]
        fixed = next((trial for trial in self._fixed.values() if trial.label == size.of), None)
        if fixed is not None:
            same = [trial for trial in self._fixed.values() if trial.schedule == fixed.schedule]
        best: list[TrialRecord] = best_first(same)
        return self.study.tuning.values(best[0].parameters) if best else None


def is_tuned(scheduler: BaselineScheduler) -> bool:
    """Whether nothing is left to train of the baselines."""
    return scheduler.suggest() is None and all(trial.is_ended for trial in scheduler.counted())
