"""Operators in a space: searched by name, and refused where some point could not be done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nasgrow.config import TrainingConfig
from nasgrow.operators import OPERATORS, Stack
from nasgrow.shape import HeadGroup, Shape, Variant
from nasgrow.spaces import Choices, Space, bind, load_space, with_training
from nasgrow.spaces.grid import points
from nasgrow.spaces.operators import check_operators
from nasgrow.spaces.training import PEAK
from nasgrow.study.config import StudyConfig, load_study
from nasgrow.study.study import ResolvedStudy
from nasgrow.training.run import Run
from tests.doubling import Doubling
from tests.spaces.asking import FINAL, PLAIN, RandomTrial

COMPOUND: dict[str, Any] = {"kind": "compound", "start": [1, 0.5]}
LAYERS: dict[str, Any] = {"kind": "per-dimension", "dims": {"layers": {"start": [1, 0.5, 0.25]}}}
SLOTS: dict[str, Any] = {
    "kind": "slots",
    "start": {"layers": [1, 0.5], "mlp": [1, 0.5, 0.25]},
    "choices": {"none": [], "deep": ["layers"], "wide": ["mlp"]},
    "factor": [2],
}
PAIR = {"width": "preserve", "depth": "preserve"}
UNEQUAL = FINAL.with_layers([*FINAL.layers[:3], replace(FINAL.layers[3], mlp=128)])
HEADS = FINAL.with_layers([replace(FINAL.layers[0], groups=(HeadGroup(1, 16, 16), HeadGroup(1, 8, 8)))] * 4)


def bound(
    data: dict[str, Any], operator: Any = "preserve", final: Shape = FINAL, variant: Variant = PLAIN
) -> Space:
    training = TrainingConfig.model_validate({"operator": operator})
    return bind(load_space(data, "space", Path()), final, variant, training, {PEAK: Choices([0.006])})


@pytest.mark.parametrize(
    ("space", "operator"),
    [
        ({**LAYERS, "training": {"operator": ["preserve", "stack", "interleave"]}}, "preserve"),
        ({**COMPOUND, "training": {"operator": ["preserve", "net2net"]}}, "preserve"),
        ({**COMPOUND, "training": {"operator.depth": ["preserve", "stack"]}}, PAIR),
        (
            {**SLOTS, "training": {"operator.width": ["preserve", "net2net"], "operator.depth": ["stack"]}},
            PAIR,
        ),
    ],
)
def test_every_point_is_a_growth_that_its_operator_can_do(space: dict[str, Any], operator: Any) -> None:
    found, seen = bound(space, operator), set()
    training = TrainingConfig.model_validate({"operator": operator})
    for seed in range(60):
        point = found.sample(RandomTrial(seed))
        chosen = with_training(training, point.training).operator
        seen.add(chosen.kind)
        for shape, event in zip(point.schedule.shapes, point.schedule.events, strict=False):
            chosen.check(shape, event.expansions, PLAIN)
    assert seen == {possible.kind for possible in found.operators}


@pytest.mark.parametrize(
    ("space", "operator", "final", "message"),
    [
        (COMPOUND, "stack", FINAL, "operator stack cannot grow hidden; it grows layers"),
        ({**COMPOUND, "training": {"operator": ["preserve", "stack"]}}, "preserve", FINAL, "operator stack"),
        ({**COMPOUND, "training": {"operator": ["nothing"]}}, "preserve", FINAL, "training: operator: must"),
        (
            {**LAYERS, "training": {"operator.depth": ["stack"]}},
            "preserve",
            FINAL,
            "training: operator.pair.width: is missing",
        ),
        (LAYERS, "stack", UNEQUAL, "operator stack copies layers, so where layers grow all must be equal"),
        (LAYERS, "ligo", UNEQUAL, "operator ligo mixes layers, so where layers grow all must be equal"),
        (
            {**SLOTS, "layers": ["all", "upper"]},
            {**PAIR, "depth": "stack"},
            FINAL,
            "operator stack copies layers, so where layers grow all must be equal at any time",
        ),
        (
            {**COMPOUND, "dims": ["hidden", "mlp", "heads"]},
            "fusion",
            FINAL,
            "operator fusion grows the whole width at once, which the points of a space need not do",
        ),
        (
            {**COMPOUND, "dims": ["mlp"]},
            "bert2bert",
            UNEQUAL,
            "operator bert2bert takes units from the next layer, so where width grows all layers must",
        ),
        (COMPOUND, "net2net", HEADS, "operator net2net copies heads, so where heads grow those of a layer"),
    ],
)
def test_a_space_with_a_point_that_cannot_be_done_is_refused(
    space: dict[str, Any], operator: Any, final: Shape, message: str
) -> None:
    with pytest.raises(ValueError, match="operator") as error:
        bound(space, operator, final)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_keys_under_rope_are_refused_where_they_grow() -> None:
    variant = replace(PLAIN, positions="rope")
    with pytest.raises(ValueError, match="net2net cannot grow key under rope"):
        bound(COMPOUND, "net2net", variant=variant)
    bound({**COMPOUND, "dims": ["hidden", "layers", "heads"]}, "net2net", variant=variant)


@pytest.mark.parametrize(
    ("space", "fits"),
    [
        (COMPOUND, False),  # two events pass through 0.71
        ({**COMPOUND, "events": 1}, True),
        ({**COMPOUND, "events": 1, "start": [1, 0.75]}, False),
        ({**COMPOUND, "events": 1, "start": {"low": 0.5, "high": 1}}, False),
        (LAYERS, True),
        ({**LAYERS, "steps": 2}, False),  # the geometric mean of 0.5 and 1
        (SLOTS, True),
        ({**SLOTS, "factor": [1.5]}, False),
    ],
)
def test_whole_factors_are_told_from_all_sizes_a_space_may_pass_through(
    space: dict[str, Any], fits: bool
) -> None:
    model: Any = load_space(space, "space", Path())
    if fits:
        check_operators([Doubling()], model, [FINAL], PLAIN)
    else:
        with pytest.raises(ValueError, match=r"operator doubling grows .* by integer factors"):
            check_operators([Doubling()], model, [FINAL], PLAIN)


def test_a_study_counts_what_operators_cost_in_its_smallest_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    final = {"hidden": 16, "layers": 2, "mlp": 32, "heads": 2, "key": 4, "value": 4}
    config = StudyConfig.model_validate(
        {
            "name": "tiny",
            "final": final,
            "space": {**LAYERS, "times": {"low": 0.1, "high": 0.7, "step": 0.1}},
            "training": {"operator": "stack", "context": 16, "batch_tokens": 64},
            "budget": {"flops": 2e8},
            "trials": 1,
        }
    )
    ResolvedStudy.resolve(config, "tiny.yaml")
    monkeypatch.setattr(Stack, "flops", lambda self, old, *rest: 10**9)
    with pytest.raises(ValueError, match=r"tiny\.yaml: budget: 2e\+08 FLOPs are too few"):
        ResolvedStudy.resolve(config, "tiny.yaml")


def test_the_study_of_operators_has_every_operator_and_every_run_of_it_can_be_done() -> None:
    path = Path("studies/operators.yaml")
    study = ResolvedStudy.resolve(load_study(path), str(path))
    found = [study.space.at(parameters) for parameters in points(study.space).values()]
    runs = [study.run(point.schedule, point.training, seed=0) for point in found if point.schedule.events]
    assert len(runs) == 51
    for config in runs:
        run = Run.resolve(config, vocab=study.variant.vocab, fingerprint="")
        assert run.schedule.final == study.final
        assert (run.stages[1].event_flops > 0) == (run.config.training.operator.kind in ("ligo", "gradmax"))
    kinds = {kind for config in runs for kind in config.training.operator.kind.split(" + ")}
    assert kinds == set(OPERATORS)
