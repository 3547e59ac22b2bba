"""A simulated cluster: one worker does what a replay does, many do it sooner, and wait for each other."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from nasgrow.search.config import Pruner, Sampler
from nasgrow.search.replay import replay
from nasgrow.search.simulate import Simulation, simulate
from nasgrow.search.table import Row, Table
from tests.benchmarks.scale import line
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


def timed_table() -> Table:
    """Runs whose first FLOPs take the longest, as those of small shapes do."""
    table = made_table()

    def seconds(flops: int) -> float:
        return 30 * math.sqrt(flops / table.study.budget)

    def timed(row: Row) -> Row:
        way = tuple(replace(place, elapsed=seconds(place.flops)) for place in row.places)
        return replace(row, places=way, seconds=seconds(row.charged))

    return Table(table.study, map(timed, table.rows), {})


def test_runs_take_the_seconds_that_they_took() -> None:
    table = timed_table()
    settings: Any = {"sampler": Sampler(kind="grid"), "pruner": Pruner(kind="none"), "trials": table.points}
    apart, shared = (simulate(table, 1, 0, share=share, **settings) for share in (False, True))
    runs = {row.schedule: row.seconds for row in table.rows}
    assert len(runs) == table.points
    assert apart.time == pytest.approx(sum(seconds or 0.0 for seconds in runs.values()))
    spared = 1 - shared.executed / apart.executed
    assert 1 - shared.time / apart.time > 1.2 * spared, "what is shared is the slow part"
    many = simulate(table, 16, 0, share=True, **settings)
    assert many.trained == pytest.approx(shared.trained)


def test_a_line_tells_time_in_its_unit_and_flops_as_a_number() -> None:
    found = Simulation(2, 10.0, 12.0, 1.0, 3_210_000_000, ended=((4.0, 2.0),))
    told = line(found, replace(found, workers=1, time=20.0, executed=2_140_000_000), timed_table())
    assert "time   10.00 s (   2.0 times faster)" in told
    assert "executed 3.21e+09 FLOPs, 1.50 of one worker's" in told
    assert " s " not in line(found, found, made_table())


def test_when_something_was_found() -> None:
    found = Simulation(2, 10.0, 12.0, 1.0, 7, ended=((3.0, None), (4.0, 2.5), (9.0, 2.0)))
    assert [found.time_to(loss) for loss in (3.0, 2.0, 1.0)] == [4.0, 9.0, None]
    assert found.utilisation == pytest.approx(0.6)
