"""Grids and lists: every point once, in order, and cheap ones first where costs are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nasgrow.schedulers.base import Start
from nasgrow.schedulers.listed import FixedScheduler, GridScheduler, confirmations
from nasgrow.spaces.grid import points
from nasgrow.study.trial_runs import CANDIDATE, SEED
from tests.schedulers.playing import SPACE, Play, finished, record, small_study


class Later:
    """Costs by which later events are cheaper."""

    def flops(self, parameters: Mapping[str, Any]) -> float:
        return -float(parameters["at.1"] + parameters["at.2"])


def test_a_grid_has_every_distinct_point_once() -> None:
    study = small_study(sampler={"kind": "grid"}, trials=None)
    play = Play(study, GridScheduler)
    play.run()
    keys = [study.space.at(trial.parameters).key for trial in play.trials.values()]
    assert len(keys) == len(set(keys)) == len(points(study.space)) == 16


def test_a_grid_leaves_out_points_that_mean_the_same_runs_as_a_trial() -> None:
    study = small_study(sampler={"kind": "grid"}, trials=None)
    same = {"start": 1, "at.1": 0.7, "at.2": 0.1}  # no growth, whatever the times
    trials = {0: finished(study, 0, same, 1.0)}
    left = GridScheduler(study, trials)
    first = left.choose()
    assert first is not None
    assert first.parameters["start"] == 0.5


def test_the_cheapest_points_of_a_grid_start_first() -> None:
    study = small_study(sampler={"kind": "grid"}, trials=None, space={**SPACE, "known": {}})
    play = Play(study, lambda study, trials: GridScheduler(study, trials, Later()), workers=1)
    play.run()
    costs = [Later().flops(trial.parameters) for trial in play.trials.values()]
    assert costs == sorted(costs)


def test_a_list_is_started_in_order_and_what_failed_before_is_started_again() -> None:
    study = small_study()
    starts = confirmations(["search 3", "baseline 1"], [7, 8])
    assert starts[1] == Start({CANDIDATE: "search 3", SEED: 8}, "search 3")
    trials = {0: record(study, 0, starts[0].parameters, kind="confirmation")}
    scheduler = FixedScheduler(study, trials, starts)
    assert scheduler.suggest() == starts[1]
    trials[0].status = "failed"
    assert scheduler.suggest() == starts[1], "it would fail again"
    assert FixedScheduler(study, trials, starts).suggest() == starts[0], "in the next launch it might not"
