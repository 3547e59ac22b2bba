"""Tuning at the end of a search: tune the best contender until no neighbouring setting is better.

This one scheduler tunes schedules and fixed shapes alike, so that neither gets more tuning than the other.
"""

from __future__ import annotations

from nasgrow.schedulers.base import CompleteScheduler, Decision, Resume, Scheduler, Start, Trials
from nasgrow.study.baselines import best_first
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TUNING, TrialRecord
from nasgrow.study.tuning import contender, tries


class TuneBestScheduler(CompleteScheduler):
    """Tunes the best contender once the search has nothing more to train.

    Args:
        study: The study.
        trials: Its trials so far.
        search: The scheduler of the search.
        grows: Whether only schedules with events are contenders.
    """

    def __init__(self, study: ResolvedStudy, trials: Trials, search: Scheduler, *, grows: bool) -> None:
        super().__init__(study, trials)
        self._search, self._grows = search, grows

    def suggest(self) -> Start | Resume | None:
        """Return what the search suggests, or after its end the next setting of the best contender.

        Return None while a running trial may still decide what is best, if no contender has
        finished, if a trial of the best contender has failed in this launch, and once that
        contender is tuned.
        """
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
        values = tuning.next(*tries(tuning, (trial for trial in self.counted() if contender(trial) == own)))
        if values is None:
            return None
        return Start({**best.parameters, **tuning.parameters(values)}, f"{TUNING}{best.label}")

    def on_evaluation(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        """Ask the search's scheduler; trials that tune are always trained to the end."""
        return Decision.CONTINUE if trial.tunes else self._search.on_evaluation(trial, at, loss)
