"""ASHA: who pauses at a rung, who is promoted, and when nothing is decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from nasgrow.schedulers.asha import AshaScheduler
from nasgrow.schedulers.base import Decision, Resume, Start
from nasgrow.schedulers.listed import FixedScheduler
from nasgrow.schedulers.make import make_scheduler
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord
from tests.schedulers.playing import Play, record, small_study

CONTINUE, PAUSE = Decision.CONTINUE, Decision.PAUSE


def asha(after: float = 0.25, recovery: float = 0.0) -> ResolvedStudy:
    pruner = {"kind": "asha", "after": after, "recovery": recovery}
    return small_study(sampler={"kind": "random"}, pruner=pruner, trials=40)


def alone(study: ResolvedStudy, trials: Mapping[int, TrialRecord]) -> AshaScheduler:
    """ASHA over nothing that starts trials."""
    return AshaScheduler(study, trials, FixedScheduler(study, {}, []))


def train(scheduler: AshaScheduler, trial: TrialRecord, to: float, loss: float) -> str:
    """Evaluate a trial at each twentieth of the budget up to a fraction, unless it pauses before."""
    for step in range(len(trial.evaluations) + 1, round(20 * to) + 1):
        trial.evaluations.append((step / 20, loss))
        if scheduler.on_evaluation(trial, step / 20, loss) is PAUSE:
            trial.status = "paused"
            return f"paused at {step / 20}"
    trial.status = "finished"
    return "finished"


def some(study: ResolvedStudy, count: int, **changes: Any) -> dict[int, TrialRecord]:
    return {number: record(study, number, {"n": number}, **changes) for number in range(count)}


def test_a_trial_is_promoted_once_it_is_among_the_best_half_of_its_rung() -> None:
    study = asha()
    trials = some(study, 4)
    scheduler = alone(study, trials)
    ends = [train(scheduler, trials[number], 1, float(number)) for number in range(3)]
    assert ends == ["finished", "paused at 0.25", "paused at 0.25"]
    assert scheduler.suggest() is None
    assert train(scheduler, trials[3], 1, 3.0) == "paused at 0.25"
    assert scheduler.suggest() == Resume(1), "of four, two go on"
    trials[1].status = "running"
    assert scheduler.on_evaluation(trials[1], 0.25, 1.0) is CONTINUE, "it reports its rung again"
    assert train(scheduler, trials[1], 1, 1.0) == "paused at 0.5", "at the next rung it is the worse of two"
    assert scheduler.suggest() is None


def test_a_promoted_trial_goes_on_although_others_have_outdone_it_since() -> None:
    study = asha()
    trials = some(study, 6)
    scheduler = alone(study, trials)
    for number in range(4):
        train(scheduler, trials[number], 1, float(number))
    assert scheduler.suggest() == Resume(1)
    trials[1].status = "running"
    train(scheduler, trials[4], 0.25, -1.0)
    assert scheduler.on_evaluation(trials[1], 0.25, 1.0) is CONTINUE


def test_the_highest_rung_is_promoted_from_first() -> None:
    study = asha()
    trials = some(study, 8)
    for number, trial in trials.items():
        trial.status, at = "paused", 0.5 if number < 4 else 0.25
        trial.evaluations = [(step / 20, float(number)) for step in range(1, round(20 * at) + 1)]
    trials[0].status = "finished"
    assert alone(study, trials).suggest() == Resume(1)
    for number in range(4):
        trials[number].status = "finished"
    assert alone(study, trials).suggest() is None, "the better half of the first rung is beyond it"
    trials[4].evaluations = [(at, -1.0) for at, _ in trials[4].evaluations]
    assert alone(study, trials).suggest() == Resume(4)


@pytest.mark.parametrize(
    ("after", "recovery", "paused"),
    [(0.2, 0.25, 0.2), (0.3, 0.25, 0.3), (0.35, 0.25, 0.7), (0.35, 0.0, 0.35), (0.55, 0.25, 0.55)],
)
def test_pausing_waits_for_its_time_and_for_recovery(after: float, recovery: float, paused: float) -> None:
    """The event is at 30%, after the evaluation there."""
    study = asha(after, recovery)
    trials = some(study, 2)
    trials[0].evaluations = [(step / 20, 0.0) for step in range(1, 21)]
    trials[1].schedule = {"start": {}, "events": [{"at": 0.3, "grow": []}]}
    assert train(alone(study, trials), trials[1], 1, 1.0) == f"paused at {paused}"


def test_a_trial_that_may_be_paused_from_the_beginning_is_not_paused_before_it_was_evaluated() -> None:
    study = asha(after=0.0)
    trials = some(study, 2)
    scheduler = alone(study, trials)
    assert train(scheduler, trials[0], 1, 0.0) == "finished"
    assert train(scheduler, trials[1], 1, 1.0) == "paused at 0.05"


def test_a_loss_that_is_no_number_pauses_nothing() -> None:
    study = asha()
    trials = some(study, 2)
    trials[0].evaluations = [(0.25, 1.0)]
    assert alone(study, trials).on_evaluation(trials[1], 0.25, float("nan")) is CONTINUE


def test_at_the_limit_of_trials_promotions_go_on_until_none_is_left() -> None:
    play = Play(asha(), make_scheduler)
    play.run()
    assert len(play.trials) == 40
    finished = [trial for trial in play.trials.values() if trial.status == "finished"]
    reached = [trial for trial in play.trials.values() if trial.evaluations[-1][0] >= 0.5]
    assert len(reached) >= 20, "the better half of the first rung has gone on"
    assert len(finished) >= 10, "and of the second"
    assert len(finished) < 25
    best = min(play.trials.values(), key=play.loss)
    assert best.status == "finished"


def test_new_trials_start_where_none_can_be_promoted() -> None:
    study = asha()
    starts = FixedScheduler(study, {}, [Start({"start": 1})])
    assert AshaScheduler(study, {}, starts).suggest() == Start({"start": 1})
