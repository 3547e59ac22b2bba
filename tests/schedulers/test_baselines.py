"""Baselines: every size at every learning rate, and beyond the edge where the best is there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from nasgrow.schedulers.base import Start
from nasgrow.schedulers.baselines import BaselineScheduler
from nasgrow.study.baselines import PEAK, baselines, learning_rates
from nasgrow.study.plans import SIZE
from nasgrow.study.study import Study
from nasgrow.study.trials import TrialRecord
from tests.schedulers.playing import Play, small_study


def rates(play: Play, size: str) -> list[float]:
    return [trial.parameters[PEAK] for trial in play.trials.values() if trial.parameters[SIZE] == size]


def tuned(study: Study, trials: Mapping[int, TrialRecord]) -> BaselineScheduler:
    """The scheduler of the sizes that a search trains from scratch."""
    return BaselineScheduler(study, trials, baselines(study))


def play_baselines(best: float, **changes: Any) -> Play:
    """Baselines whose loss is the lower, the closer the learning rate is to the best."""

    def loss(trial: TrialRecord) -> float:
        return abs(math.log(trial.parameters[PEAK] / best))

    play = Play(small_study(**changes), tuned, "baseline", loss=loss)
    play.run()
    return play


def test_every_size_is_tried_at_every_rate_and_named() -> None:
    play = play_baselines(
        best=1e-3, baselines={"alone": False, "shares": [0.75], "learning_rates": [5e-4, 1e-3, 2e-3]}
    )
    sizes = [size.name for size in baselines(play.study)]
    assert len(sizes) == 3
    first = learning_rates(play.study)
    assert [trial.name for trial in play.trials.values()] == [size for size in sizes for _ in first]
    assert all(rates(play, size) == first for size in sizes)


def test_rates_are_extended_until_the_best_lies_between_others() -> None:
    given = {"alone": False, "shares": [], "start": False, "learning_rates": [1.5e-3, 3e-3]}
    play = play_baselines(best=1.2e-2, baselines=given)
    first = learning_rates(play.study)
    assert rates(play, "final")[: len(first)] == first
    assert max(rates(play, "final")) == pytest.approx(2.4e-2)
    fixed = play_baselines(best=1.2e-2, baselines={**given, "extended": False})
    assert rates(fixed, "final") == first


def test_a_size_is_extended_once_all_of_its_trials_have_ended() -> None:
    play = play_baselines(best=8e-3, baselines={"alone": False, "shares": [], "learning_rates": [1e-3, 2e-3]})
    first = learning_rates(play.study)
    trials = {number: trial for number, trial in play.trials.items() if trial.parameters[PEAK] in first}
    assert isinstance(tuned(play.study, trials).suggest(), Start)
    for trial in trials.values():
        trial.status = "running"
    assert tuned(play.study, trials).suggest() is None


def test_a_baseline_that_failed_starts_again_in_the_next_launch() -> None:
    play = play_baselines(best=1e-3, baselines={"alone": False, "shares": [], "start": False})
    play.trials[1].status = "failed"
    assert play.suggest() is None
    again = tuned(play.study, play.trials).suggest()
    assert again == Start(play.trials[1].parameters, "final")
