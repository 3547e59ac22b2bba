"""A ramp: shorter sequences and smaller batches first; budget, evaluations and model are as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasgrow.config import TrainingConfig
from nasgrow.data import Corpus
from nasgrow.data import batch as real_batch
from nasgrow.errors import UserError
from nasgrow.expansions import GrowMlp
from nasgrow.flops import step_flops
from nasgrow.schedule import Event, RampSteps, Schedule, stages
from nasgrow.shape import Shape, Variant
from nasgrow.strict import parse
from nasgrow.training import loop
from nasgrow.training.budget_steps import first_step
from nasgrow.training.loop import InterruptedRunError
from nasgrow.training.records import read_metrics
from nasgrow.training.run import Run
from nasgrow.training.step import evaluate as real_evaluate
from nasgrow.training.step_seconds import StepSeconds
from tests.training import prefixes
from tests.training.runs import TRAINING, equal, make_run, run_in, stop_after, timeless, weights

RAMP: dict[str, Any] = {"until": 0.4, "context": 4, "batch_tokens": 16}
"""The tests' runs have a context of 16, batches of 64, and events at 30% and 60%."""


def ramped(folder: Path, ramp: dict[str, Any] | None = RAMP, **changes: Any) -> tuple[Run, Corpus]:
    training = {**changes.pop("training", {}), "ramp": ramp}
    return make_run(folder, training=training, **changes)


SMALL = Shape.uniform(hidden=4, layers=1, mlp=4, heads=1, key=4, value=4)
VARIANT = Variant(vocab=5, context=8)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3000), st.sampled_from([1, 2]))
def test_a_budget_is_divided_as_if_it_were_spent_step_by_step(
    until: int, at: int, extra: int, sequences: int
) -> None:
    schedule = Schedule(SMALL, (Event(at / 10, (GrowMlp(32),)),))
    costs = [
        (step_flops(shape, VARIANT.with_context(2), sequences), step_flops(shape, VARIANT, 2))
        for shape in schedule.shapes
    ]
    budget = 40 * costs[1][1] + extra
    ramp = RampSteps(until / 10, 2, sequences)
    found = stages(schedule, VARIANT, budget, sequences=2, muon=False, ramp=ramp)
    spent, many = 0, [[0, 0], [0, 0]]
    while True:
        place, whole = int(10 * spent >= at * budget), int(10 * spent >= until * budget)
        if spent + costs[place][whole] > budget:
            break
        spent += costs[place][whole]
        many[place][whole] += 1
    assert [[stage.ramp_steps, stage.steps - stage.ramp_steps] for stage in found] == many
    assert found[-1].spent_at(found[-1].end) == found[-1].charged(found[-1].end) == spent
    for stage in found:
        places = [stage.spent_at(step) for step in range(stage.first, stage.end)]
        for step, target in enumerate(places, stage.first):
            assert first_step(found, target) == step
            assert first_step(found, target - 1) == step


def test_a_run_that_never_leaves_its_ramp_is_refused() -> None:
    cost = step_flops(SMALL, VARIANT, 2)
    ramp = RampSteps(0.9, 2, 1)
    with pytest.raises(UserError, match="leaves no step for stage 1 of 1"):
        stages(Schedule(SMALL), VARIANT, 9 * cost, sequences=2, muon=False, ramp=ramp)


def test_steps_in_the_ramp_are_small_and_all_else_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, corpus = ramped(tmp_path)
    drawn: list[tuple[int, int, int]] = []
    looked: list[int] = []

    def batch(tokens: Any, *, seed: int, step: int, count: int, length: int) -> Any:
        drawn.append((step, count, length))
        return real_batch(tokens, seed=seed, step=step, count=count, length=length)

    def evaluate(model: Any, windows: Any, chunk: int) -> float:
        looked.append(windows.shape[1] - 1)
        return real_evaluate(model, windows, chunk)

    monkeypatch.setattr(loop, "batch", batch)
    monkeypatch.setattr(loop, "evaluate", evaluate)
    result = run_in(tmp_path / "run", run, corpus)
    last = run.ramp_steps
    assert [stage.ramp_steps > 0 for stage in run.stages] == [True, True, False]
    assert run.stages[1].spent_at(last - 1) < 0.4 * run.budget <= run.stages[1].spent_at(last)
    assert drawn == [(step, *((4, 4) if step < last else (4, 16))) for step in range(result.steps)]
    assert set(looked) == {16}
    assert result.tokens == 16 * last + 64 * (result.steps - last)
    assert result.charged <= run.budget
    for record in read_metrics(tmp_path / "run"):
        small = min(record["step"], last)
        assert record["tokens"] == 16 * small + 64 * (record["step"] - small)
        assert record["fraction"] == record["charged"] / run.budget


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    training = {"optimizer": "muon", "micro_tokens": 32}
    run, corpus = ramped(tmp_path, {"until": 0.4, "context": 8}, training=training, budget={"flops": 6e7})
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    run_in(whole, run, corpus)
    done = 0
    for at in (run.stages[1].first + 1, run.ramp_steps, run.ramp_steps + 1):
        with pytest.raises(InterruptedRunError):
            run_in(parted, run, corpus, stop=stop_after(at - done))
        done = at
    run_in(parted, run, corpus)
    assert equal(weights(whole, run), weights(parted, run))
    assert timeless(list(read_metrics(whole))) == timeless(list(read_metrics(parted)))


def test_a_ramp_without_steps_is_none(tmp_path: Path) -> None:
    plain, _ = make_run(tmp_path)
    none, _ = ramped(tmp_path, {**RAMP, "until": 0.0})
    some, _ = ramped(tmp_path)
    assert none.describe() == plain.describe()
    assert none.identity == plain.identity != some.identity
    assert prefixes.keys(none) == prefixes.keys(plain)
    assert Run.from_description(some.describe(), "here").stages == some.stages
    assert "ramp" not in TrainingConfig().model_dump()


def test_runs_share_a_prefix_until_the_shorter_ramp_ends(tmp_path: Path) -> None:
    budget = {"flops": prefixes.BUDGET}
    short, corpus = ramped(tmp_path, {**RAMP, "until": 0.25}, budget=budget)
    long, _ = ramped(tmp_path, {**RAMP, "until": 0.55}, budget=budget)
    ours, theirs = prefixes.keys(short), prefixes.keys(long)
    assert [percent for percent in ours if ours[percent] == theirs[percent]] == [10, 20]
    cache = prefixes.cache_in(tmp_path)
    prefixes.run_in(tmp_path / "short", short, corpus, cache)
    shared = prefixes.run_in(tmp_path / "long", long, corpus, cache)
    alone = prefixes.run_in(tmp_path / "alone", long, corpus)
    assert shared.executed < alone.executed
    assert prefixes.outcome(tmp_path / "long", shared) == prefixes.outcome(tmp_path / "alone", alone)


def test_ramps_of_other_sizes_share_nothing_even_at_the_same_cost(tmp_path: Path) -> None:
    budget = {"flops": prefixes.BUDGET}
    one, _ = ramped(tmp_path, budget=budget)
    other, _ = ramped(tmp_path, {**RAMP, "context": 8}, budget=budget)
    other.__dict__["stages"] = one.stages  # as if its steps cost the same
    assert not {*prefixes.keys(one).values()} & {*prefixes.keys(other).values()}


def test_seconds_are_counted_by_the_kind_of_step(tmp_path: Path) -> None:
    run, _ = ramped(tmp_path)
    by_flops = StepSeconds("here", step=(0, 0, 0, 1.0, 0), evaluation=(0, 0, 0, 0, 0))
    last = run.stages[-1]
    charged = last.charged(last.end)
    assert by_flops.of_run(run) == pytest.approx(charged)
    elapsed = by_flops.elapsed(run)
    for flops in (charged // 7, charged // 3, charged // 2, charged):
        assert elapsed(flops) == pytest.approx(flops)
    steps = [0.1, 0.2, 0.4, 0.25, 0.5, 1.0]
    timed, _ = ramped(tmp_path, budget={"seconds": 10.0, "step_seconds": steps})
    assert [(stage.ramp_steps, stage.steps) for stage in timed.stages] == [(30, 30), (5, 9), (0, 4)]
    message = "must be those of 3 stages, for each one in the ramp first, then one after it, not 3"
    with pytest.raises(UserError, match=message):
        ramped(tmp_path, budget={"seconds": 10.0, "step_seconds": steps[:3]})


@pytest.mark.parametrize(
    ("ramp", "training", "message"),
    [
        ({"until": 0.3}, {}, "ramp must have a context, batch_tokens, or both"),
        ({"until": 0.3, "context": 16}, {}, "ramp.context must be below the training's 16, not 16"),
        ({"until": 0.3, "batch_tokens": 64}, {}, "ramp.batch_tokens must be below the training's 64, not 64"),
        ({"until": 0.3, "batch_tokens": 24}, {}, "a ramp's batch of 24 tokens must be a multiple"),
        (
            {"until": 0.3, "context": 12},
            {},
            "a ramp's batch of 64 tokens must be a multiple of its context of 12",
        ),
        ({"until": 0.95, "context": 4}, {}, "until"),
        ({"context": 4}, {}, "ramp.until"),
        (
            {"until": 0.3, "context": 5, "batch_tokens": 40},
            {"micro_tokens": 16},
            "micro_tokens of 16 must be whole sequences of a ramp's 5 tokens",
        ),
    ],
)
def test_a_ramp_that_cannot_be_is_one_line(
    ramp: dict[str, Any], training: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as raised:
        parse(TrainingConfig, {**TRAINING, **training, "ramp": ramp}, "training")
    assert "\n" not in str(raised.value)
