"""The best contender is tuned at the end of a search."""

from __future__ import annotations

import math

import pytest

from nasgrow.schedulers.base import Scheduler, Start, Trials
from nasgrow.schedulers.listed import FixedScheduler
from nasgrow.schedulers.tune_best import TuneBestScheduler
from nasgrow.spaces.training import PEAK
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord
from tests.schedulers.playing import Play, small_study


def tuning(study: ResolvedStudy, trials: Trials) -> Scheduler:
    """A search of one schedule at the study's own rate, and the scheduler that tunes it."""
    own = study.tuning.parameters(study.tuning.own)
    listed = [Start({**study.space.known["half"], **own}, "half")]
    return TuneBestScheduler(study, trials, FixedScheduler(study, trials, listed), grows=True)


def distance(trial: TrialRecord) -> float:
    return abs(math.log(trial.parameters[PEAK] / 6e-3))


def test_a_setting_that_failed_is_tried_again_in_the_next_launch_only() -> None:
    play = Play(
        small_study(tune={PEAK: ["x0.5", "x1", "x2"]}, trials=None, total_flops=1e12), tuning, loss=distance
    )
    play.run()
    rates = [trial.parameters[PEAK] for trial in play.trials.values()]
    assert sorted(rates) == pytest.approx([0.003, 0.006, 0.012])
    failed = play.trials[max(play.trials)]
    failed.status, failed.losses = "failed", [None]
    assert play.suggest() is None, "it would fail again"
    again = tuning(play.study, play.trials).suggest()
    assert isinstance(again, Start)
    assert again.parameters == failed.parameters
