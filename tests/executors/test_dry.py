"""The dry executor: what jobs would cost, and the losses that are made up for schedulers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from nasgrow.executors.base import Evaluated, Finished, Job, TrialKey
from nasgrow.executors.dry import Assumed, DryExecutor, DryRuns, MadeUpLosses
from nasgrow.schedulers.base import Decision
from nasgrow.spaces.training import BATCH, PEAK
from nasgrow.study.costs import Trained
from nasgrow.study.trial_runs import SIZE, plan
from nasgrow.study.trials import Kind, TrialRecord
from nasgrow.study.tuning import Tuning, key
from tests.study.made import made_table

STUDY = made_table().study
NEVER = {f"start.{dim}": 1.0 for dim in ("hidden", "layers", "mlp")} | dict.fromkeys(
    ("at.hidden", "at.layers", "at.mlp"), 0.2
)


def job(number: int, parameters: dict[str, Any] | None = None, kind: Kind = "search") -> Job:
    given = NEVER if parameters is None else parameters
    return Job(TrialKey(kind, number), plan(STUDY, kind, given, {"search": {}, "fixed": {}}).runs, given)


def dry(folder: Path, slots: int = 1) -> DryExecutor:
    runs = DryRuns(STUDY, Assumed("", {}, {}))
    losses = MadeUpLosses(STUDY, {}, 0, extended=False)
    return DryExecutor(runs, Trained(STUDY, folder), {}, losses, slots)


def finished(executor: DryExecutor) -> Finished:
    """The end of a job that is never paused."""
    while True:
        (event,) = executor.events(0.0)
        if isinstance(event, Finished):
            return event
        assert isinstance(event, Evaluated)
        executor.reply(event.trial, Decision.CONTINUE)


def test_it_counts_what_recorded_runs_cost(tmp_path: Path) -> None:
    table, executor = made_table(), dry(tmp_path)
    points = [{**NEVER, "start.mlp": 0.5, "at.mlp": at} for at in (0.4, 0.8)]
    rows = [table.runs(STUDY.space.at(point), [0])[0] for point in points]
    for number, point in enumerate(points):
        executor.submit(job(number, point))
        (run,) = finished(executor).runs
        shared = next(place.flops for place in rows[0].places if place.fraction == 0.4) if number else 0
        assert (run.charged, run.executed) == (rows[number].charged, rows[number].charged - shared)
        assert run.seconds == pytest.approx(run.executed / STUDY.budget, rel=1e-6)
    assert len(executor.states) == 8 - 2, "four each, of which they share two"
    assert min(executor.states.values()) < max(executor.states.values()), "states grow"


def losses(number: int, draw: int = 0, at: float = 0.5) -> float:
    return MadeUpLosses(STUDY, {}, draw, extended=False).at(job(number), at)


def test_made_up_losses_favour_nothing_and_keep_their_rank() -> None:
    ranks = [losses(number) for number in range(200)]
    assert len({*ranks}) == 200
    assert fmean(ranks[::2]) == pytest.approx(fmean(ranks[1::2]), abs=0.15)
    later = [losses(number, at=1.0) for number in range(200)]
    assert all(after < before for before, after in zip(ranks, later, strict=True)), "they fall"
    order = sorted(range(200), key=ranks.__getitem__)
    assert sorted(range(200), key=later.__getitem__) == order
    assert sorted(range(200), key=lambda number: losses(number, draw=1)) != order


def test_made_up_losses_are_like_those_of_trials_that_were_evaluated() -> None:
    known = {
        number: TrialRecord("search", number, None, {}, {}, "", 0.1, 1, 1, evaluations=[(0.5, 3.0 + number)])
        for number in range(4)
    }
    made = MadeUpLosses(STUDY, known, 0, extended=False)
    assert {round(made.at(job(number), 0.5), 6) for number in range(100)} == {3.0, 4.0, 5.0, 6.0}


@pytest.mark.parametrize("extended", [False, True])
def test_a_fixed_size_is_tuned_further_or_not(extended: bool) -> None:
    tuning = Tuning.of({PEAK: ["x0.5", "x1", "x2"], BATCH: ["x1"]}, STUDY.config.training)
    losses = MadeUpLosses(replace(STUDY, tuning=tuning), {}, 0, extended=extended)
    tried = {
        key(values): losses.at(job(0, {SIZE: "final", PEAK: values[PEAK]}, "baseline"), 1.0)
        for values in tuning.first()
    }
    beyond = tuning.next(tried)
    assert (beyond is not None) == extended
    assert beyond is None or beyond[PEAK] > max(tuning.declared[PEAK])
