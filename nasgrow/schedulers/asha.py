"""ASHA (asynchronous successive halving): pause trials at rungs, and resume the best of them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

from nasgrow.schedulers.base import Decision, Resume, Scheduler, Start, Trials
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord

ETA = 2
"""The reduction factor: the best ``1 / ETA`` of the trials that reached a rung go on."""

EARLIEST = 0.01
"""The first rung, as a fraction of the budget, if ``pruner.after`` is lower."""

_ROUNDING = 1e-9


class AshaScheduler(Scheduler):
    """Asynchronous successive halving with promotion (Li et al. 2020, algorithm 2).

    Rungs are at ``pruner.after`` of the budget, or at :data:`EARLIEST` if that is later, and at
    each power of ``ETA`` times the first. A trial that reaches a rung goes on if its loss is among
    the best ``1 / ETA`` of all trials that reached the rung so far, and pauses otherwise; the first
    trial at a rung goes on. A paused trial is promoted once enough others have reached its rung
    with a higher loss. A trial that reaches a rung within ``pruner.recovery`` after one of its
    events goes on to the next rung, because its loss says little about its final loss.

    Args:
        study: The study.
        trials: Its trials so far.
        starts: The scheduler that starts new trials when there is none to promote.
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
        """Resume the best paused trial of the highest rung with one to promote, or start a trial.

        Return None if the search has spent its compute or time, or if there is no trial to start.
        """
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
        """Pause a trial at a rung, unless its loss is among the best or recovers from an event."""
        rung = self._rung(at)
        before = max((earlier for earlier, _ in trial.evaluations if earlier < at), default=0.0)
        if rung is None or rung == self._rung(before):
            return Decision.CONTINUE  # the evaluation lies between two rungs
        if not math.isfinite(loss) or not self._has_recovered(trial, at):
            return Decision.CONTINUE
        if self._promoted.get(trial.number) == rung:
            return Decision.CONTINUE  # it was promoted from here (the driver reports no evaluation twice)
        worst = _highest_to_go_on(self._reached(rung).values())
        return Decision.PAUSE if loss > worst else Decision.CONTINUE

    def _rung(self, at: float) -> float | None:
        """Return the highest rung at or before a fraction of the budget; None before the first rung."""
        return max((rung for rung in self._rungs if rung <= at + _ROUNDING), default=None)

    def _reached(self, rung: float) -> dict[int, float]:
        """Return the rung's losses by trial number, for all trials that have reached the rung.

        A trial's loss at a rung is its first evaluation at or after the rung. Only the trial's
        first run reports evaluations, and only finite ones are recorded.
        """
        found = {}
        for number, trial in self.trials.items():
            place = bisect_left(trial.evaluations, (rung - _ROUNDING,))
            if place < len(trial.evaluations):
                found[number] = trial.evaluations[place][1]
        return found

    def _paused_at(self, trial: TrialRecord, rung: float) -> bool:
        return trial.status == "paused" and self._rung(trial.evaluations[-1][0]) == rung

    def _has_recovered(self, trial: TrialRecord, at: float) -> bool:
        """Return whether the trial's latest event, if any, is at least ``pruner.recovery`` before this time.

        An evaluation at the time of an event happens before that event.
        """
        events = [event["at"] for event in trial.schedule.get("events", ()) if event["at"] < at]
        return not events or at >= max(events) + self.study.config.pruner.recovery - _ROUNDING


def _highest_to_go_on(losses: Iterable[float]) -> float:
    """Return the highest loss among the best ``1 / ETA``; the lowest loss if there are fewer than ``ETA``."""
    ordered = sorted(losses)
    return ordered[max(1, len(ordered) // ETA) - 1]
