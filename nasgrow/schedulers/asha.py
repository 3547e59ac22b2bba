"""Asynchronous successive halving, which pauses trials at rungs and resumes the best of them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

from nasgrow.schedulers.base import Decision, Resume, Scheduler, Start, Trials
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord

ETA = 2
"""Of the trials that reached a rung, one in so many goes on."""

EARLIEST = 0.01
"""The first rung of a study whose trials may be paused from the beginning."""

_ROUNDING = 1e-9


class AshaScheduler(Scheduler):
    """Asynchronous successive halving with promotion (Li et al. 2020, algorithm 2).

    Rungs are at ``pruner.after`` of the budget and at each power of ``ETA`` times it. A trial that reaches a
    rung goes on if its loss is among the best ``1 / ETA`` of all that reached it so far, and pauses
    otherwise. A paused trial is promoted once enough others have reached its rung with a higher loss. It
    goes on in any case within ``pruner.recovery`` after one of its events, where the loss says little.

    Args:
        study: The study.
        trials: Its trials so far.
        starts: The scheduler that starts new trials, when there is none to promote.
    """

    def __init__(self, study: ResolvedStudy, trials: Trials, starts: Scheduler) -> None:
        super().__init__(study, trials)
        self._starts = starts
        self._rungs: list[float] = []
        self._promoted: dict[int, float] = {}
        rung = max(study.config.pruner.after, EARLIEST)
        while rung < 1 - _ROUNDING:
            self._rungs.append(rung)
            rung *= ETA

    def suggest(self) -> Start | Resume | None:
        """The best paused trial of the highest rung that has one to promote, or else a new trial."""
        if self.study.is_spent(self.trials.values()):
            return None
        for rung in reversed(self._rungs):
            reached = self._reached(rung)
            paused = [number for number in reached if self._paused_at(self.trials[number], rung)]
            best = min(paused, key=reached.__getitem__, default=None)
            if best is not None and reached[best] <= _highest_to_go_on(reached.values()):
                self._promoted[best] = rung
                return Resume(best)
        return self._starts.suggest()

    def on_evaluation(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        """Pause a trial at a rung, unless its loss is among the best there."""
        rung = self._rung(at)
        before = max((earlier for earlier, _ in trial.evaluations if earlier < at), default=0.0)
        if rung is None or rung == self._rung(before):
            return Decision.CONTINUE  # it is between two rungs
        if not math.isfinite(loss) or not self._has_recovered(trial, at):
            return Decision.CONTINUE
        if self._promoted.get(trial.number) == rung:
            return Decision.CONTINUE  # a trial that is resumed reports its last evaluation again
        worst = _highest_to_go_on(self._reached(rung).values())
        return Decision.PAUSE if loss > worst else Decision.CONTINUE

    def on_finished(self, trial: TrialRecord) -> None:
        """Pass it on to the scheduler that starts trials."""
        self._starts.on_finished(trial)

    def _rung(self, at: float) -> float | None:
        """The highest rung that lies at or before a fraction of the budget."""
        return max((rung for rung in self._rungs if rung <= at + _ROUNDING), default=None)

    def _reached(self, rung: float) -> dict[int, float]:
        """The trials that reached a rung, by number, and their loss there."""
        found = {}
        for number, trial in self.trials.items():
            place = bisect_left(trial.evaluations, (rung - _ROUNDING,))
            if place < len(trial.evaluations):
                found[number] = trial.evaluations[place][1]
        return found

    def _paused_at(self, trial: TrialRecord, rung: float) -> bool:
        return trial.status == "paused" and self._rung(trial.evaluations[-1][0]) == rung

    def _has_recovered(self, trial: TrialRecord, at: float) -> bool:
        """Whether no event of a trial lies shortly before; an evaluation at an event comes before it."""
        events = [event["at"] for event in trial.schedule.get("events", ()) if event["at"] < at]
        return not events or at >= max(events) + self.study.config.pruner.recovery - _ROUNDING


def _highest_to_go_on(losses: Iterable[float]) -> float:
    """The highest loss that is among the best ``1 / ETA``, or the best while there are fewer than that."""
    ordered = sorted(losses)
    return ordered[max(1, len(ordered) // ETA) - 1]
