"""Find the best schedule of a study, and the run that has its weights."""

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
    """One of the best schedules of a study.

    Attributes:
        trial: The trial that found it. It may be a baseline, if a fixed shape is better than all schedules.
        loss: The mean loss over seeds. If the schedule is confirmed, it is that of fresh seeds on the test
            split; otherwise that of the search on the validation split.
        confirmed: Whether it is confirmed; otherwise it is a candidate.
        seeds: How many seeds the loss is the mean of.
    """

    trial: TrialRecord
    loss: float
    confirmed: bool
    seeds: int

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        return schedule_from(self.trial.schedule)

    def run(self, folder: Path) -> Path:
        """Return the folder of its first run, given the study's folder."""
        return folder / RUNS / next(iter(self.trial.runs))

    def __str__(self) -> str:
        state = "confirmed: test" if self.confirmed else "a candidate, not confirmed yet: validation"
        return f"{self.trial.label}, {state} loss {self.loss:.4f}; {self.trial.title}: {self.trial.words}"


def best_schedule(trials: Trials) -> BestSchedule | None:
    """Return the best confirmed schedule of a study; the best of the search if none is confirmed.

    None if no trial has finished.
    """
    found = confirmed_schedules(trials) or sorted(
        (
            BestSchedule(trial, trial.loss, confirmed=False, seeds=len(trial.seeds))
            for trial in trials["search"].values()
            if trial.loss is not None
        ),
        key=lambda one: one.loss,
    )
    return next(iter(found), None)


def confirmed_schedules(trials: Trials) -> list[BestSchedule]:
    """Return the schedules and fixed shapes that were confirmed at the study's budget, the best first.

    They are ordered by the validation loss of the fresh seeds, as in a report: the test split judges the
    choice, and does not make it. Those with fewer seeds than others are left out: they have not ended yet,
    or have diverged.
    """
    found = list(_confirmed(trials))
    most = max((one.seeds for _, one in found), default=0)
    return [one for _, one in sorted(found, key=lambda pair: pair[0]) if one.seeds == most]


def _confirmed(trials: Trials) -> Iterator[tuple[float, BestSchedule]]:
    """Yield the mean validation loss of each confirmed schedule, and the schedule."""
    for trial in (trial for kind in SEARCHED for trial in trials[kind].values()):
        runs = [one for one in trials["confirmation"].values() if one.name == trial.label and one.test]
        if runs and (trial.kind != "baseline" or times_of(trial.name or "") == 1):
            test, validation = [loss for one in runs for loss in one.test], [one.loss or 0.0 for one in runs]
            yield fmean(validation), BestSchedule(trial, fmean(test), confirmed=True, seeds=len(test))


def best_run(trials: Trials, folder: Path) -> tuple[BestSchedule, Path]:
    """Return the :func:`best_schedule` of the study in ``folder``, and the folder of its first run.

    The run has its weights. A confirmed schedule precedes all others, even those with a lower loss.

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
            f"looked better in the search: nasgrow train {folder} trains it again and names its folder, "
            "which nasgrow sample and nasgrow export accept"
        )
    return best, run
