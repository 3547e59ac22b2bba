"""The best schedule of a study, and the run that has its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from nasgrow.errors import UserError
from nasgrow.schedule import Schedule, schedule_from
from nasgrow.study.baselines import times_of
from nasgrow.study.trials import RUNS, SEARCHED, Kind, TrialRecord
from nasgrow.training.records import CHECKPOINTS, checkpoint_steps

Trials = Mapping[Kind, Mapping[int, TrialRecord]]


@dataclass(frozen=True)
class BestSchedule:
    """The best schedule that a study knows.

    Attributes:
        trial: The trial that found it; a baseline's, if a fixed shape is better than all that grow.
        loss: The mean of its losses: on the test split and with fresh seeds if it is confirmed, else that of
            the search, on the validation split.
        confirmed: Whether it is confirmed, or a candidate.
    """

    trial: TrialRecord
    loss: float
    confirmed: bool

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        return schedule_from(self.trial.schedule)

    def run(self, folder: Path) -> Path:
        """The folder of its first run, in the study's folder."""
        return folder / RUNS / next(iter(self.trial.runs))

    def __str__(self) -> str:
        state = "confirmed" if self.confirmed else "a candidate, not confirmed yet"
        return f"{self.trial.label}, {state}: loss {self.loss:.4f}; {self.trial.words}"


def best_schedule(trials: Trials) -> BestSchedule | None:
    """The best schedule of a study: of those that are confirmed, else of all; None if none has finished."""
    found = list(_confirmed(trials)) or [
        BestSchedule(trial, trial.loss, confirmed=False)
        for trial in trials["search"].values()
        if trial.loss is not None
    ]
    return min(found, key=lambda one: one.loss, default=None)


def _confirmed(trials: Trials) -> Iterator[BestSchedule]:
    """What was confirmed at the study's budget: schedules that grow, and fixed shapes."""
    for trial in (trial for kind in SEARCHED for trial in trials[kind].values()):
        losses = [
            loss for one in trials["confirmation"].values() if one.name == trial.label for loss in one.test
        ]
        if losses and (trial.kind != "baseline" or times_of(trial.name or "") == 1):
            yield BestSchedule(trial, fmean(losses), confirmed=True)


def best_run(trials: Trials, folder: Path) -> tuple[BestSchedule, Path]:
    """The best schedule of the study in ``folder``, and the folder of a run that has its weights.

    Raises:
        UserError: No trial has finished, or its weights were not kept.
    """
    best = best_schedule(trials)
    if best is None:
        raise UserError(f"{folder}: no trial has finished yet")
    run = best.run(folder)
    if not checkpoint_steps(run / CHECKPOINTS):
        raise UserError(
            f"{folder}: the weights of {best.trial.label}, its best schedule, were not kept, because another "
            f"looked better in the search: nasgrow train {folder} trains it again"
        )
    return best, run
