"""The seconds of a step: fitted to a few shapes, added up over the stages of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nasgrow.config import TrainingConfig
from nasgrow.errors import UserError
from nasgrow.shape import Shape, Variant
from nasgrow.training.budget_steps import evaluation_steps
from nasgrow.training.loop import train
from nasgrow.training.prefixes import forks
from nasgrow.training.records import read_metrics
from nasgrow.training.run import Run
from nasgrow.training.step_seconds import StepSeconds, fit, quantities
from nasgrow.training.step_timing import measure_steps, saved_bytes
from tests.training.runs import make_run

TRAINING = TrainingConfig(context=16, batch_tokens=64)
PLAIN = Variant(vocab=256, context=16)


def shape(hidden: int, layers: int, mlp: int) -> Shape:
    return Shape.uniform(hidden=hidden, layers=layers, mlp=mlp, heads=2, key=4, value=4)


SHAPES = [shape(8, 1, 16), shape(16, 1, 16), shape(8, 4, 16), shape(8, 1, 64), shape(16, 4, 64)]


def test_a_fit_tells_depth_from_width_where_flops_cannot() -> None:
    true = 1e-4, 3e-4, 2e-10, 5e-12, 0.0
    rows = [quantities(one, PLAIN, TRAINING) for one in SHAPES]
    seconds = [sum(a * b for a, b in zip(true, row, strict=True)) for row in rows]
    steps = StepSeconds("here", fit(rows, seconds), fit(rows, seconds))
    assert min(steps.step) >= 0
    for other in (shape(12, 2, 24), shape(16, 3, 64)):
        row = quantities(other, PLAIN, TRAINING)
        expected = sum(a * b for a, b in zip(true, row, strict=True))
        assert steps.of(other, PLAIN, TRAINING) == pytest.approx(expected, rel=0.02)


def test_the_quantities_of_a_step_follow_its_batch_and_its_variant() -> None:
    one, layers, activations, flops, parameters = quantities(SHAPES[0], PLAIN, TRAINING)
    twice = quantities(SHAPES[0], PLAIN, TRAINING.model_copy(update={"batch_tokens": 128}))
    assert twice == (one, layers, 2 * activations, 2 * flops, parameters)
    assert quantities(SHAPES[0], replace(PLAIN, gated=True), TRAINING)[2] == activations + 64 * 16


def test_the_seconds_of_a_run_are_those_of_its_steps_and_of_its_operators(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path)
    each = StepSeconds("here", step=(2.0, 0, 0, 0, 0), evaluation=(1.0, 0, 0, 0, 0))
    assert each.of_run(run) == pytest.approx(2.0 * run.stages[-1].end), "evaluations are not among them"
    by_flops = StepSeconds("here", step=(0, 0, 0, 1.0, 0), evaluation=(0, 0, 0, 0, 0))
    learning, _ = make_run(tmp_path, training={"operator": {"kind": "gradmax"}})
    last = learning.stages[-1]
    assert any(stage.event_flops for stage in learning.stages)
    assert by_flops.of_run(learning) == pytest.approx(last.charged(last.end))


def test_steps_are_measured_on_a_device() -> None:
    cases = [(one, TRAINING) for one in SHAPES[:2]]
    steps = measure_steps(cases, PLAIN, torch.device("cpu"))
    assert steps.device.endswith(("thread", "threads"))
    assert [timing.shape for timing in steps.timings] == [str(one) for one in SHAPES[:2]]
    for timing, (one, training) in zip(steps.timings, cases, strict=True):
        assert 0 < timing.evaluation < timing.step
        assert steps.of(one, PLAIN, training) > 0


def test_a_backward_pass_needs_more_memory_for_more_tokens() -> None:
    cpu = torch.device("cpu")
    more = TRAINING.model_copy(update={"batch_tokens": 128})
    assert 0 < saved_bytes(SHAPES[0], PLAIN, TRAINING, cpu) < saved_bytes(SHAPES[0], PLAIN, more, cpu)


SECONDS = {"seconds": 10.0, "step_seconds": [0.25, 0.5, 1.0]}
"""A budget for the three stages of a test's schedule, whose events are at 0.3 and 0.6 of it."""


def test_a_budget_of_seconds_is_divided_by_what_steps_take(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path, budget=SECONDS)
    assert [stage.steps for stage in run.stages] == [12, 6, 4], "3, 3 and 4 seconds"
    assert [stage.spent for stage in run.stages] == [0, 3 * 10**9, 6 * 10**9]
    assert [stage.flops_before for stage in run.stages] == [
        sum(before.flops for before in run.stages[:place]) for place in range(3)
    ]
    assert evaluation_steps(run) == {0: 0.0, 8: 0.2, 14: 0.4, 18: 0.6, 20: 0.8}

    result = train(run, corpus, tmp_path, device=torch.device("cpu"))
    assert result.charged == sum(stage.flops for stage in run.stages), "FLOPs are what is billed"
    told = [(line["step"], line["fraction"]) for line in read_metrics(tmp_path) if line["kind"] == "event"]
    assert told == [(12, 0.3), (18, 0.6)]


def test_what_an_operator_costs_is_charged_in_seconds_too(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, budget=SECONDS, training={"operator": {"kind": "gradmax"}})
    (stage,) = [stage for stage in run.stages if stage.event_flops]
    assert stage.event_cost == pytest.approx(1e9 * stage.event_flops / stage.step_flops, abs=1)
    assert run.stages[-1].spent_at(run.stages[-1].end) <= run.budget


def test_the_seconds_of_steps_belong_to_the_identity_of_a_run(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, budget=SECONDS)
    again = Run.from_description(run.describe(), "here")
    assert (again.identity, again.stages) == (run.identity, run.stages)
    later, _ = make_run(tmp_path, budget={**SECONDS, "step_seconds": [0.25, 0.5, 1.001]})
    assert later.stages[:2] == run.stages[:2]
    assert later.identity != run.identity
    ours, theirs = ([fork.key for fork in forks(one, [0.3, 0.6], {})] for one in (run, later))
    last = max(place for place, fork in enumerate(forks(run, [0.3, 0.6], {})) if fork.step <= 18)
    assert ours[: last + 1] == theirs[: last + 1], "a prefix is shared as far as its own steps cost the same"
    assert ours[last + 1 :] != theirs[last + 1 :]


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"seconds": 10.0}, "budget.step_seconds: must be the seconds of a step of each stage"),
        ({**SECONDS, "step_seconds": [1.0]}, "budget.step_seconds: must be those of 3 stages, one for each"),
        ({"flops": 1e9, "step_seconds": [1.0]}, "step_seconds belong to a budget of seconds, not of flops"),
        (
            {"flops": 1e9, "seconds": 1.0},
            "a budget is exactly one of flops, tokens, tokens_per_parameter, se",
        ),
        ({**SECONDS, "seconds": 2.0}, "the budget of 2 seconds leaves no step for stage 3 of 3"),
        ({**SECONDS, "step_seconds": [0, 1, 1]}, "step_seconds.0"),
    ],
)
def test_a_budget_of_seconds_that_cannot_be_is_refused(
    tmp_path: Path, budget: dict[str, object], message: str
) -> None:
    with pytest.raises((UserError, ValueError), match=message):
        _ = make_run(tmp_path, budget=budget)[0].stages
