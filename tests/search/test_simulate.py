"""A simulated cluster: one worker does what a replay does, many do it sooner, and wait for each other."""

from __future__ import annotations

from collections import Counter
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


@pytest.mark.parametrize(
    ("kind", "pruner", "share"),
    [
        ("tpe", "median", True),
        ("random", "none", False),
        ("tpe", "halving", True),
        ("random", "halving", False),
        ("tree", "none", True),
    ],
)
def test_one_worker_does_what_a_replay_does(kind: Any, pruner: Any, share: bool) -> None:
    trials = 24 if kind == "tree" else 40  # a tree thinks for long
    alone = cluster(1, kind, pruner, trials=trials, share=share)
    same = replay(
        made_table(), 0, sampler=Sampler(kind=kind), pruner=Pruner(kind=pruner), trials=trials, share=share
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


@pytest.mark.parametrize(("kind", "pruner"), [("tpe", "halving"), ("tree", "none")])
def test_a_limit_of_compute_counts_what_a_trial_had_spent_before_it_went_on(kind: Any, pruner: Any) -> None:
    budget = made_table().study.budget
    found = cluster(4, kind, pruner, trials=200, total_flops=6.0 * budget)
    assert 6 * budget <= found.executed < (6 + 4) * budget, "each of four workers ends what it has begun"
    assert len(found.ended) > 6


def test_workers_of_a_tree_train_no_branch_twice() -> None:
    one, many = cluster(1, "tree", trials=24), cluster(8, "tree", trials=40)
    assert many.time < one.time / 2
    ended = Counter(loss for _, loss in many.ended if loss is not None)
    assert ended <= Counter(made_table().losses([0])), "no loss more often than there are points with it"


def test_when_something_was_found() -> None:
    found = Simulation(2, 10.0, 12.0, 1.0, 7, ended=((3.0, None), (4.0, 2.5), (9.0, 2.0)))
    assert [found.time_to(loss) for loss in (3.0, 2.0, 1.0)] == [4.0, 9.0, None]
    assert found.utilisation == pytest.approx(0.6)
