"""Optuna's samplers: what they see of the trials, and when they end."""

from __future__ import annotations

import logging
from statistics import median
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from nasgrow.schedulers.base import Start
from nasgrow.schedulers.samplers import BEST, IDLE, SEEN, OptunaScheduler
from nasgrow.spaces.grid import points
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord
from tests.schedulers.playing import SPACE, Play, finished, record, small_study

FINE = {**SPACE, "times": {"low": 0.01, "high": 0.7, "step": 0.01}, "known": {}}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[FrozenTrial]:
    """The trials that Optuna was shown for the latest suggestion."""
    found: list[FrozenTrial] = []
    add = optuna.Study.add_trials

    def spy(study: optuna.Study, trials: list[FrozenTrial]) -> None:
        found[:] = trials
        add(study, trials)

    monkeypatch.setattr(optuna.Study, "add_trials", spy)
    return found


def point(number: int) -> dict[str, Any]:
    return {"start": 0.5, "at.1": round(0.01 * (1 + number % 70), 2), "at.2": 0.7}


def fine_study(**changes: Any) -> ResolvedStudy:
    return small_study(space=FINE, **{"trials": 1000, **changes})


def test_optuna_is_shown_what_became_of_each_trial(shown: list[FrozenTrial]) -> None:
    study = fine_study()
    seen = [(0.25, 2.0), (0.5, 1.5)]
    states = {
        "running": (TrialState.RUNNING, {}),
        "finished": (TrialState.COMPLETE, {}),
        "paused": (TrialState.PRUNED, {25: 2.0, 50: 1.5}),
        "pruned": (TrialState.PRUNED, {25: 2.0, 50: 1.5}),
        "diverged": (TrialState.PRUNED, {}),
        "failed": (TrialState.FAIL, {}),
    }
    trials = {
        number: record(study, number, point(number), status=status, losses=[1.0], evaluations=list(seen))
        for number, status in enumerate(states)
    }
    scheduler = OptunaScheduler(study, trials)
    scheduler.suggest()
    assert [(trial.state, trial.intermediate_values) for trial in shown] == list(states.values())
    assert [trial.params for trial in shown] == [trial.parameters for trial in trials.values()]
    assert shown[1].value == 1.0
    trials[2].status = "finished"  # it was resumed
    scheduler.suggest()
    assert shown[2].state == TrialState.COMPLETE


@pytest.mark.parametrize("second", ["parameters", "inference_flops"])
def test_two_objectives_are_the_loss_and_what_a_model_costs(second: str, shown: list[FrozenTrial]) -> None:
    study = fine_study(objectives=["loss", second])
    trial = finished(study, 0, point(0), 1.5)
    OptunaScheduler(study, {0: trial}).suggest()
    cost = trial.parameter_count if second == "parameters" else trial.inference_flops
    assert shown[0].values == [1.5, cost]


def test_of_very_many_trials_a_sampler_sees_the_best_and_some_of_the_others(shown: list[FrozenTrial]) -> None:
    study = fine_study()
    count = 3 * SEEN
    trials = {
        number: finished(study, number, point(number), (number * 37 % count)) for number in range(count)
    }
    trials[count] = record(study, count, point(0))
    OptunaScheduler(study, trials).suggest()
    assert len(shown) <= SEEN + 1
    assert shown[-1].state == TrialState.RUNNING
    losses = [trial.value for trial in shown[:-1]]
    assert set(range(BEST)) <= set(losses)
    assert sum(loss is not None and loss > count / 2 for loss in losses) > SEEN / 4


def test_of_very_many_trials_of_two_objectives_it_sees_the_pareto_front(shown: list[FrozenTrial]) -> None:
    study = fine_study(objectives=["loss", "parameters"])
    trials = {number: finished(study, number, point(number), 2.0) for number in range(2 * SEEN)}
    front = range(7, 7 * BEST, 14)
    for number, trial in trials.items():
        trial.parameter_count = 10_000
        if number in front:
            trial.losses, trial.parameter_count = [1.0 + number / 1000], 5000 - number
    OptunaScheduler(study, trials).suggest()
    assert [trials[number].loss for number in front] == [
        trial.values[0] for trial in shown if trial.values[0] < 2.0
    ]


def quadratic(trial: TrialRecord) -> float:
    """Best where growth starts from a half, early and then late."""
    away = (trial.parameters["at.1"] - 0.15) ** 2 + (trial.parameters["at.2"] - 0.55) ** 2
    return float(away + (trial.parameters["start"] == 1))


@pytest.mark.parametrize("kind", ["tpe", "nsga-ii"])
def test_samplers_learn(kind: str) -> None:
    """NSGA-II's second objective is the same for all trials here, so that there is one best."""
    found = {}
    for name in (kind, "random"):
        objectives = ["loss", "parameters"] if name == "nsga-ii" else ["loss"]
        play = Play(fine_study(sampler={"kind": name}, objectives=objectives, trials=40), OptunaScheduler)
        play.loss = quadratic
        play.run()
        found[name] = median([quadratic(trial) for trial in list(play.trials.values())[20:]])
    assert found[kind] < found["random"] / 2


def test_a_resumed_study_replays_no_trial() -> None:
    study = fine_study(sampler={"kind": "random"}, trials=16)
    play = Play(study, OptunaScheduler, rebuilt=True)
    play.run()
    drawn = {tuple(trial.parameters.values()) for trial in play.trials.values()}
    assert len(drawn) == 16
    other = Play(small_study(space=FINE, name="another", sampler={"kind": "random"}), OptunaScheduler)
    other.run(starts=1)
    assert other.trials[0].parameters != play.trials[0].parameters


def test_without_a_number_of_trials_a_search_ends_when_trials_only_repeat_what_is_known() -> None:
    study = fine_study(sampler={"kind": "random"}, trials=None, total_flops=1e12)
    trials = {number: finished(study, number, point(number), 1.0) for number in range(IDLE + 3)}
    scheduler = OptunaScheduler(study, trials)
    for trial in list(trials.values())[3:]:
        assert isinstance(scheduler.suggest(), Start)
        trial.executed = 0
    assert scheduler.suggest() is None
    numbered = fine_study(sampler={"kind": "random"})
    assert isinstance(OptunaScheduler(numbered, trials).suggest(), Start)


def test_without_a_number_of_trials_a_search_ends_when_every_point_of_a_small_space_is_tried() -> None:
    study = small_study(sampler={"kind": "random"}, trials=None, total_flops=1e15)
    play = Play(study, OptunaScheduler)
    play.run()
    *before, last = [study.space.at(trial.parameters).key for trial in play.trials.values()]
    assert {*before, last} == points(study.space).keys()
    assert last not in before
    assert OptunaScheduler(study, play.trials).suggest() is None, "resumed"


def test_optuna_is_quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        Play(small_study(sampler={"kind": "tpe", "startup": 2}), OptunaScheduler).run()
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
