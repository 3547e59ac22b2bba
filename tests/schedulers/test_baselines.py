"""The final shape and other sizes, tuned one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from nasgrow.schedulers.base import Start
from nasgrow.schedulers.baselines import BaselineScheduler, is_tuned
from nasgrow.spaces.training import PEAK
from nasgrow.study.baselines import BaselineSize, final_size, other_budgets
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord
from tests.schedulers.playing import Play, small_study

RATES = {PEAK: ["x0.5", "x1", "x2"]}


def rates(play: Play, size: str) -> list[float]:
    return [trial.parameters[PEAK] for trial in play.trials.values() if trial.name == size]


def tuned(study: ResolvedStudy, trials: Mapping[int, TrialRecord]) -> BaselineScheduler:
    """The scheduler of the final shape under all budgets."""
    final = final_size(study)
    return BaselineScheduler(study, trials, [final, *other_budgets(study, [final])], {})


def play_baselines(best: float, **changes: Any) -> Play:
    """Baselines whose loss is the lower, the closer the learning rate is to the best."""

    def loss(trial: TrialRecord) -> float:
        return abs(math.log(trial.parameters[PEAK] / best))

    changes = {"tune": RATES, "baselines": {"budgets": [2]}, **changes}
    play = Play(small_study(**changes), tuned, "baseline", workers=1, loss=loss)
    play.run()
    return play


def test_the_final_shape_is_tried_at_every_declared_rate() -> None:
    play = play_baselines(best=6e-3)
    assert rates(play, "final") == [0.003, 0.006, 0.012]


def test_rates_are_extended_until_the_best_lies_between_others() -> None:
    play = play_baselines(best=2.4e-2)
    assert rates(play, "final") == pytest.approx([0.003, 0.006, 0.012, 0.024, 0.048])


def test_under_another_budget_it_begins_at_its_best_rate_and_tries_those_next_to_it() -> None:
    play = play_baselines(best=2.4e-2)
    assert rates(play, "final, 2x budget") == pytest.approx([0.024, 0.012, 0.048])


def test_the_least_number_of_trials_is_known_from_the_start() -> None:
    play = play_baselines(best=6e-3)
    nothing = tuned(play.study, {})
    assert nothing.planned() == 6, "three declared rates, then the best one and those next to it"
    assert tuned(play.study, play.trials).planned() == len(play.trials) == 6
    extended = play_baselines(best=2.4e-2)
    assert tuned(extended.study, extended.trials).planned() == len(extended.trials) == 8


def test_a_size_that_is_tuned_needs_no_further_trials() -> None:
    """The largest declared batch is the best: it has no higher neighbour."""
    tune = {"batch_tokens": ["x0.5", "x1"]}
    play = Play(
        small_study(tune=tune, baselines={"budgets": [2]}),
        tuned,
        "baseline",
        workers=1,
        loss=lambda trial: -math.log(trial.parameters["batch_tokens"]),
    )
    play.run()
    scheduler = tuned(play.study, play.trials)
    assert is_tuned(scheduler)
    assert scheduler.planned() == len(play.trials)


def test_a_fixed_shape_under_another_budget_begins_at_its_own_best_rate() -> None:
    play = play_baselines(best=6e-3)
    shape = {**play.trials[0].schedule, "start": {**play.trials[0].schedule["start"], "hidden": 8}}
    own = {
        number: TrialRecord(
            **{**vars(play.trials[0]), "kind": "fixed", "number": number, "name": None, "schedule": shape}
            | {"parameters": {PEAK: rate}, "losses": [loss]}
        )
        for number, (rate, loss) in enumerate([(0.003, 2.0), (0.012, 1.9)])
    }
    scheduler = BaselineScheduler(
        play.study, play.trials, [BaselineSize("fixed 0, 2x budget", play.study.final, 2.0)], own
    )
    assert scheduler.suggest() == Start({"size": "fixed 0, 2x budget", PEAK: 0.012}, "fixed 0, 2x budget")


def test_a_baseline_that_failed_starts_again_in_the_next_launch() -> None:
    play = play_baselines(best=6e-3)
    assert is_tuned(tuned(play.study, play.trials))
    play.trials[2].status = "failed"
    assert play.suggest() is None
    again = tuned(play.study, play.trials)
    assert again.suggest() == Start(play.trials[2].parameters, "final")
    assert not is_tuned(again)
