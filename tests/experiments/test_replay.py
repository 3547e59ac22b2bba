"""Replay: searches of recorded runs, equal to themselves, and sooner on many slots."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nasgrow.experiments.replay import Ended, Replayed, replay
from nasgrow.study.config import Pruner, Sampler
from tests.study.made import made_table


def search(seed: int = 0, kind: Any = "random", pruner: Any = "none", **options: Any) -> Replayed:
    settings: dict[str, Any] = {"trials": 40, **options}
    return replay(made_table(), seed, sampler=Sampler(kind=kind), pruner=Pruner(kind=pruner), **settings)


def found(replayed: Replayed) -> list[float]:
    return [end.loss for end in replayed.ended if end.loss is not None]


@pytest.mark.parametrize("options", [{}, {"kind": "tpe", "pruner": "asha"}, {"slots": 8, "noise": 0.3}])
def test_a_replay_equals_itself_and_differs_by_its_seed(options: dict[str, Any]) -> None:
    first = search(**options)
    assert search(**options).ended == first.ended
    assert found(search(1, **options)) != found(first)


def test_many_slots_do_the_same_work_sooner() -> None:
    one, many, apart = (
        search(trials=60),
        search(trials=60, slots=16),
        search(trials=60, slots=16, share=False),
    )
    assert sorted(found(many)) == sorted(found(one)) == sorted(found(apart))
    assert many.executed == one.executed == sum(trial.executed for trial in many.trials)
    assert many.charged == one.charged == apart.charged
    assert apart.executed > many.executed
    assert many.trained == pytest.approx(one.trained)
    assert one.seconds / 16 < many.seconds < one.seconds / 2
    assert one.waited == 0 < many.waited
    assert one.utilisation == pytest.approx(1)


def test_a_limit_of_compute_ends_a_search() -> None:
    budget = made_table().study.budget
    limited = search(pruner="asha", trials=200, total_flops=6.0 * budget, slots=4)
    assert 6 * budget <= limited.executed < (6 + 4) * budget, "each of four slots ends what it has begun"
    assert any(trial.status == "pruned" for trial in limited.trials)


def test_what_a_search_found_for_how_much_and_when() -> None:
    ended = (Ended(3.0, 4, None), Ended(4.0, 14, 3.0), Ended(9.0, 19, 2.0))
    known = Replayed(2, (), ended, seconds=10.0, trained=12.0, waited=1.0, executed=19)
    assert [known.best_within(spent) for spent in (13, 14, 18, 19)] == [math.inf, 3.0, 3.0, 2.0]
    assert [known.executed_until(loss) for loss in (3.5, 3.0, 2.5, 1.0)] == [14, 14, 19, math.inf]
    assert [known.time_to(loss) for loss in (3.0, 2.0, 1.0)] == [4.0, 9.0, math.inf]
    assert known.utilisation == pytest.approx(0.6)


def test_a_grid_ends_with_its_last_point_and_may_end_before() -> None:
    table = made_table()
    whole = search(kind="grid", trials=None)
    assert len(whole.trials) == table.points
    assert sorted(found(whole)) == sorted(table.losses([0]))
    assert len(search(kind="grid", trials=7).trials) == 7
    apart = search(kind="grid", trials=None, share=False)
    assert apart.executed == apart.charged == whole.charged
    assert whole.executed < 0.7 * apart.executed


def test_asha_executes_less_and_resumes_what_it_paused() -> None:
    whole, paused = search(), search(pruner="asha")
    assert paused.executed < 0.8 * whole.executed
    assert paused.executed == sum(trial.executed for trial in paused.trials)
    statuses = [trial.status for trial in paused.trials]
    assert {*statuses} == {"finished", "pruned"}
    assert min(found(paused)) == pytest.approx(min(found(whole)), abs=0.05)
