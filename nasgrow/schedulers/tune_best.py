"""Tuning at the end of a search: the best contender is tuned until its setting is better than all next to it.

Schedules and fixed shapes are tuned by this one scheduler, so that neither gets more than the other.
"""

from __future__ import annotations

from nasgrow.schedulers.base import Decision, Resume, Scheduler, Start, Trials
from nasgrow.study.baselines import best_first
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TUNING, TrialRecord
from nasgrow.study.tuning import contender, tries


class TuneBestScheduler(Scheduler):
    """Tunes the best contender once the search itself has nothing more to train.

    Args:
        study: The study.
        trials: Its trials so far.
        search: The scheduler of the search.
        grows: Whether only schedules that grow are contenders.
    """

    def __init__(self, study: ResolvedStudy, trials: Trials, search: Scheduler, *, grows: bool) -> None:
        super().__init__(study, trials)
        self._search, self._grows = search, grows

    def suggest(self) -> Start | Resume | None:
        """What the search suggests; when it is over, the next setting of the best contender."""
        found = self._search.suggest()
        if found is not None or any(
            trial.status == "running" and not trial.tunes for trial in self.trials.values()
        ):
            return found
        trials = self.trials.values()
        ranked = best_first(trial for trial in trials if trial.schedule["events"] or not self._grows)
        if not ranked:
            return None
        best, tuning = ranked[0], self.study.tuning
        own = contender(best)
        values = tuning.next(*tries(tuning, (trial for trial in trials if contender(trial) == own)))
        if values is None:
            return None
        return Start({**best.parameters, **tuning.parameters(values)}, f"{TUNING}{best.label}")

    def on_evaluation(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        """Ask the search, but for trials that tune: these are trained to their end."""
        return Decision.CONTINUE if trial.tunes else self._search.on_evaluation(trial, at, loss)

    def on_finished(self, trial: TrialRecord) -> None:
        """Pass it on to the search."""
        self._search.on_finished(trial)
