"""Operators in a run: what they cost is charged, and what they learn from is theirs alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nasgrow.data import batch
from nasgrow.growth.operators import RECIPES, Recipe, Situation
from nasgrow.operators import Preserve
from nasgrow.training.records import read_metrics
from nasgrow.training.run import Run
from tests.training.runs import SCHEDULE, make_run, run_in

COST = 1_000_003


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The batches that the default operator looks at: it is made to, at a price."""
    found: list[Tensor] = []
    plain: Callable[[Any, Situation], Recipe] = RECIPES["preserve"]

    def learning(operator: Preserve, situation: Situation) -> Recipe:
        assert situation.batches is not None
        found.extend(part_bs for _ in range(2) for part_bs in next(situation.batches))
        return plain(operator, situation)

    monkeypatch.setitem(RECIPES, "preserve", learning)
    monkeypatch.setattr(Preserve, "flops", lambda self, *rest: COST)
    return found


def test_what_an_operator_costs_is_charged(tmp_path: Path, seen: list[Tensor]) -> None:
    run, corpus = make_run(tmp_path)
    result = run_in(tmp_path / "run", run, corpus)
    assert result.charged == result.executed == sum(stage.flops for stage in run.stages) + 2 * COST
    assert run.budget - run.stages[-1].step_flops < result.charged <= run.budget
    records = list(read_metrics(tmp_path / "run"))
    charged = [record["charged"] for record in records]
    assert charged == sorted(charged)
    events = [record for record in records if record["kind"] == "event"]
    assert [event["flops"] for event in events] == [COST, COST]
    before = [stage.charged(stage.end) for stage in run.stages[:2]]
    assert [event["charged"] for event in events] == [spent + COST for spent in before]


def test_each_event_is_done_by_its_own_operator(tmp_path: Path) -> None:
    first, second = SCHEDULE["events"]
    events = [first, {**second, "operator": "preserve + stack"}]
    run, corpus = make_run(
        tmp_path, schedule={**SCHEDULE, "events": events}, training={"operator": "masked(opening=0.05)"}
    )
    run_in(tmp_path / "run", run, corpus)
    done = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "event"]
    assert [record["operator"] for record in done] == ["masked(opening=0.05)", "preserve + stack"]
    assert done[0]["change"] < 1e-5
    assert done[1]["change"] > 1e-3, "a stacked layer acts twice"


def test_batches_depend_on_the_run_and_the_event_and_are_none_of_its_steps(
    tmp_path: Path, seen: list[Tensor]
) -> None:
    run, corpus = make_run(tmp_path)
    run_in(tmp_path / "one", run, corpus)
    run_in(tmp_path / "two", run, corpus)
    first, second = seen[:4], seen[4:]
    assert all(map(torch.equal, first, second))
    assert [tuple(tokens_bs.shape) for tokens_bs in first] == [(4, 17)] * 4
    steps = [torch.from_numpy(tokens) for tokens in own_batches(run, corpus)]
    everything = [*first, *steps]
    assert not any(torch.equal(a, b) for index, a in enumerate(everything) for b in everything[:index]), (
        "none is another, of the same event, of another, or of the run's steps"
    )


def own_batches(run: Run, corpus: Any) -> list[Any]:
    seed, total = run.config.seed, run.stages[-1].end
    return [batch(corpus.train, seed=seed, step=step, count=4, length=16) for step in range(total)]
