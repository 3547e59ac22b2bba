"""A simulated cluster: one worker does what a replay does, many do it sooner, and wait for each other."""

from __future__ import annotations

from typing import Any

import pytest

from nasgrow.search.config import Pruner, Sampler
from nasgrow.search.replay import replay
from nasgrow.search.simulate import Simulation, simulate
from tests.search.made import made_table


def cluster(workers: int, kind: Any = "random", pruner: Any = "none", **options: Any) -> Simulation:
    trials = options.pop("trials", 60)
    settings = {"sampler": Sampler(kind=kind), "pruner": Pruner(kind=pruner), "trials": trials, **options}
    return simulate(made_table(), workers, 0, **settings)


@pytest.mark.parametrize(("kind", "pruner", "share"), [("tpe", "median", True), ("random", "none", False)])
def test_one_worker_does_what_a_replay_does(kind: Any, pruner: Any, share: bool) -> None:
    alone = cluster(1, kind, pruner, trials=40, share=share)
    same = replay(
        made_table(), 0, sampler=Sampler(kind=kind), pruner=Pruner(kind=pruner), trials=40, share=share
    )
    assert tuple(loss for _, loss in alone.ended) == same.losses
    assert alone.executed == sum(same.executed)
    assert alone.waited == 0
    assert alone.utilisation == pytest.approx(1)
    assert alone.time == pytest.approx(alone.executed / made_table().study.budget)


def test_many_workers_do_the_same_work_sooner_and_wait_for_what_they_share() -> None:
    one, many = cluster(1), cluster(16)
    assert sorted(loss for _, loss in many.ended if loss) == sorted(loss for _, loss in one.ended if loss)
    assert many.executed == one.executed, "nothing that is shared is trained twice"
    assert many.trained == pytest.approx(one.trained)
    assert one.time / 16 < many.time < one.time / 2
    assert many.waited > 0
    apart = cluster(16, share=False)
    assert apart.executed > many.executed
    assert len(cluster(16, noise=0.3).ended) == 60


def test_when_something_was_found() -> None:
    found = Simulation(2, 10.0, 12.0, 1.0, 7, ended=((3.0, None), (4.0, 2.5), (9.0, 2.0)))
    assert [found.time_to(loss) for loss in (3.0, 2.0, 1.0)] == [4.0, 9.0, None]
    assert found.utilisation == pytest.approx(0.6)
