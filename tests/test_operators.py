"""Operators as files name them, what they refuse, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest

from nasgrow.config import TrainingConfig
from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues, InsertLayers
from nasgrow.flops import step_flops
from nasgrow.operators import (
    OPERATORS,
    PRESERVE,
    AnyOperator,
    Interleave,
    Net2Net,
    Preserve,
    Stack,
    WidthAndDepth,
)
from nasgrow.schedule import Event, Schedule, stages
from nasgrow.shape import HeadGroup, Layer, Shape
from nasgrow.strict import parse
from nasgrow.verify import PAPER
from tests.doubling import Doubling

SHAPE = Shape.uniform(hidden=8, layers=2, mlp=12, heads=2, key=4, value=6)


def read(data: object) -> AnyOperator:
    return parse(TrainingConfig, {"operator": data}, "run.yaml: training").operator


@pytest.mark.parametrize(
    ("data", "operator"),
    [
        ("preserve", Preserve()),
        ({"kind": "preserve", "init": "matched"}, Preserve(init="matched")),
        ("net2net", Net2Net(noise=0.01)),
        ({"kind": "net2net", "noise": 0}, Net2Net(noise=0)),
        ({"width": "net2net", "depth": {"kind": "stack"}}, WidthAndDepth(width=Net2Net(), depth=Stack())),
        ("net2net + stack", WidthAndDepth(width=Net2Net(), depth=Stack())),
        ("net2net(noise=0)", Net2Net(noise=0)),
        ("preserve(init=matched, new=split)", Preserve(init="matched", new="split")),
        ("net2net(noise=1e-3) + stack", WidthAndDepth(width=Net2Net(noise=1e-3), depth=Stack())),
    ],
)
def test_a_name_a_mapping_or_one_for_each_of_two(data: object, operator: AnyOperator) -> None:
    assert read(data) == operator
    config = TrainingConfig.model_validate({"operator": data})
    assert TrainingConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("data", "told"),
    [
        *((name, name) for name in OPERATORS),
        ({"kind": "net2net", "noise": 0.5}, "net2net(noise=0.5)"),
        ({"kind": "preserve", "new": "split", "init": "matched"}, "preserve(init=matched, new=split)"),
        ({"kind": "ligo", "learning_rate": 1e-5, "steps": 7}, "ligo(steps=7, learning_rate=1e-05)"),
        ({"width": "masked(opening=0.2)", "depth": "stack"}, "masked(opening=0.2) + stack"),
    ],
)
def test_an_operator_is_told_as_a_file_may_name_it(data: object, told: str) -> None:
    assert str(read(data)) == told
    assert read(told) == read(data)


def test_every_operator_can_be_named_and_preserve_is_the_default() -> None:
    assert [read(name).kind for name in OPERATORS] == list(OPERATORS)
    assert TrainingConfig().operator == PRESERVE == Preserve()


NAMES = ", ".join(OPERATORS)
MORE = "or a mapping with one as its kind, or {width: operator, depth: operator}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("grow", f"operator: must be one of {NAMES}, {MORE}, not 'grow'"),
        ("grow(noise=0)", f"operator: must be one of {NAMES}, {MORE}, not 'grow(noise=0)'"),
        (3, f"operator: must be one of {NAMES}"),
        ({"kind": "stack", "order": "top"}, "operator.stack.order: there is no such field"),
        ({"kind": "net2net", "noise": -1}, "operator.net2net.noise: input should be greater than or equal"),
        ({"width": "preserve"}, "operator.pair.depth: is missing"),
        ("preserve + grow", f"operator.pair.depth: must be one of {NAMES}"),
        ("net2net(noise)", "operator.net2net.noise: input should be a valid number"),
        ("net2net(sound=1)", "operator.net2net.sound: there is no such field"),
        ("net2net(noise=0, noise=1)", "operator: must give noise once, not 'net2net(noise=0, noise=1)'"),
        ("net2net(kind=stack)", "operator: must give kind once"),
        ("preserve + net2net(noise=0,noise=0)", "operator.pair.depth: must give noise once"),
        ("net2net()", f"operator: must be one of {NAMES}"),
        ("preserve + stack + stack", f"operator.pair.depth: must be one of {NAMES}"),
        ({"width": "stack", "depth": {"width": 1}}, f"operator.pair.depth: must be one of {NAMES}"),
    ],
)
def test_mistakes_are_one_line_that_names_the_field(data: object, message: str) -> None:
    with pytest.raises(ValueError, match="training: ") as error:
        read(data)
    assert str(error.value).startswith(f"run.yaml: training: {message}")
    assert "\n" not in str(error.value)


PAIR = WidthAndDepth(width=Preserve(), depth=Stack())
TWO = Shape(8, (Layer(12, (HeadGroup(1, 4, 6), HeadGroup(1, 6, 4))),))


@pytest.mark.parametrize(
    ("operator", "shape", "event", "message"),
    [
        (Stack(), SHAPE, GrowMlp(13), "operator stack cannot grow mlp; it grows layers"),
        (Interleave(), SHAPE, GrowHidden(9), "operator interleave cannot grow hidden"),
        (PAIR, GrowMlp(13, layers=(1,))(SHAPE), InsertLayers((2,)), "operator stack makes layer 2 a copy of"),
        (
            WidthAndDepth(width=Stack(), depth=Stack()),
            SHAPE,
            GrowMlp(13),
            "operator stack cannot grow mlp; it grows layers",
        ),
        (Net2Net(), TWO, AddHeads(3, key=5, value=5), "operator net2net: a new head of layer 0"),
        (Doubling(), SHAPE, GrowHidden(12), "doubling grows hidden by integer factors, not from 8 to 12"),
        (Doubling(), SHAPE, InsertLayers((2,)), "doubling grows layers by integer factors, not from 2 to 3"),
        (Doubling(), SHAPE, GrowMlp(30, layers=(1,)), "mlp by integer factors, not from 12 to 30"),
        (Doubling(), SHAPE, GrowKeys(6, heads=(1,)), "key by integer factors, not from 4 to 6"),
        (Doubling(), SHAPE, GrowValues(9), "value by integer factors, not from 6 to 9"),
        (Doubling(), SHAPE, AddHeads(3), "heads by integer factors, not from 2 to 3"),
    ],
)
def test_what_an_operator_cannot_do_is_refused(
    operator: AnyOperator, shape: Shape, event: Expansion, message: str
) -> None:
    with pytest.raises(ValueError, match="operator") as error:
        operator.check(shape, [event], PAPER)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("operator", "shape", "event"),
    [
        (Net2Net(), TWO, [AddHeads(3, key=6, value=6)]),
        (Net2Net(), SHAPE, [GrowKeys(5), AddHeads(3, key=9)]),
        (Doubling(), SHAPE, [GrowHidden(16), InsertLayers((0, 1)), GrowMlp(36, layers=(1,))]),
        (PAIR, SHAPE, [InsertLayers((1,)), GrowMlp(13)]),
        (WidthAndDepth(width=Stack(), depth=Stack()), SHAPE, [InsertLayers((1,))]),
    ],
)
def test_what_it_can_do_is_not(operator: AnyOperator, shape: Shape, event: list[Expansion]) -> None:
    operator.check(shape, event, PAPER)


def test_of_two_the_worse_counts() -> None:
    assert PAIR.preserves == "no"
    assert WidthAndDepth(width=Net2Net(), depth=Preserve()).preserves == "nearly"
    assert WidthAndDepth(width=Net2Net(noise=0), depth=Preserve()).preserves == "exact"


# Cost


def divided(operator: AnyOperator, budget: int) -> Any:
    events = (Event(0.3, (GrowMlp(24),)), Event(0.6, (GrowHidden(16), InsertLayers((0, 1)))))
    schedule = Schedule(SHAPE, events)
    return stages(schedule, PAPER, budget, sequences=2, muon=False, operator=operator)


def test_an_event_is_charged_before_the_stage_that_follows() -> None:
    budget = 60 * step_flops(SHAPE, PAPER, 2)
    plain, charged = divided(PRESERVE, budget), divided(Doubling(), budget)
    assert [stage.event_flops for stage in plain] == [0, 0, 0]
    costs = [0, *(step_flops(stage.shape, PAPER, 2) for stage in charged[:-1])]
    assert [stage.event_flops for stage in charged] == costs
    spent = 0
    for stage in charged:
        spent += stage.event_flops
        assert stage.spent == stage.charged(stage.first) == spent
        spent += stage.flops
    assert budget - charged[-1].step_flops < spent <= budget
    assert charged[-1].steps < plain[-1].steps
    assert charged[1].first == plain[1].first, "the first event is where it was"


def test_a_budget_that_an_operator_eats_up_is_refused() -> None:
    step = step_flops(SHAPE, PAPER, 2)
    with pytest.raises(ValueError, match=r"events\[0\]\.at: .* after .* for the operator doubling$"):
        divided(Doubling(), 3 * step)


def test_the_cost_of_two_is_the_sum_of_their_shares() -> None:
    both = WidthAndDepth.model_construct(width=Doubling(), depth=Doubling())
    wide = GrowMlp(24)(SHAPE)
    cost = both.flops(SHAPE, [InsertLayers((0, 1)), GrowMlp(24)], PAPER, 2)
    assert cost == sum(step_flops(shape, PAPER, 2) for shape in (SHAPE, wide))
