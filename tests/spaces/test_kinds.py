"""What the parameters of each kind of space mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nasgrow.expansions import GrowKeys
from nasgrow.flops import forward_flops, parameter_count
from nasgrow.shape import Layer, Shape
from tests.spaces.asking import FINAL, PLAIN, RandomTrial, point, space

COMPOUND: dict[str, Any] = {"kind": "compound", "start": [1, 0.5, 0.25, 0.3]}
PER_DIMENSION: dict[str, Any] = {
    "kind": "per-dimension",
    "dims": {dim: {"start": [1, 0.5, 0.25]} for dim in ("hidden", "layers", "mlp")},
}
SLOTS: dict[str, Any] = {
    "kind": "slots",
    "start": {"hidden": [1, 0.5, 0.25], "layers": [1, 0.5], "mlp": [1, 0.5, 0.25]},
    "choices": {"none": [], "hidden": ["hidden"], "mlp": ["mlp"], "both": ["hidden", "mlp"]},
    "factor": [2, 4],
    "layers": ["all", "lower", "upper"],
}


def test_compound_growth_rises_in_equal_factors() -> None:
    schedule = point(COMPOUND, {"start": 0.25, "at.1": 0.4, "at.2": 0.1}).schedule
    assert [shape.hidden for shape in schedule.shapes] == [16, 32, 64]
    assert [event.at for event in schedule.events] == [0.1, 0.4]
    assert [len(shape.layers) for shape in schedule.shapes] == [1, 2, 4]
    assert [shape.layers[0].heads[0] for shape in schedule.shapes] == [(4, 4), (8, 8), (16, 16)]


def test_equal_times_of_compound_growth_are_one_factor() -> None:
    three = {**COMPOUND, "events": 3}
    schedule = point(three, {"start": 0.25, "at.1": 0.4, "at.2": 0.1, "at.3": 0.1}).schedule
    assert schedule == point(COMPOUND, {"start": 0.25, "at.1": 0.1, "at.2": 0.4}).schedule


def test_dimensions_grow_at_their_own_times() -> None:
    two = {**PER_DIMENSION, "steps": 2}
    given = {"start.hidden": 0.25, "at.hidden": 0.5, "at2.hidden": 0.2, "start.mlp": 0.25, "at.mlp": 0.2}
    schedule = point(two, {**given, "at2.mlp": 0.2}).schedule
    assert [(shape.hidden, shape.layers[0].mlp) for shape in schedule.shapes] == [
        (16, 64),
        (32, 256),
        (64, 256),
    ]
    assert [event.at for event in schedule.events] == [0.2, 0.5]


def test_slots_apply_in_order_of_time_and_a_last_event_closes() -> None:
    given: dict[str, Any] = {"start.hidden": 0.25, "start.mlp": 0.25, "close.at": 0.6}
    given |= {"slot1.grow": "hidden", "slot1.at": 0.3, "slot1.factor": 4}
    given |= {"slot2.grow": "both", "slot2.at": 0.1, "slot2.layers": "upper"}
    schedule = point(SLOTS, given).schedule
    sizes = [(shape.hidden, [layer.mlp for layer in shape.layers]) for shape in schedule.shapes]
    assert sizes == [(16, [64] * 4), (32, [64, 64, 128, 128]), (64, [64, 64, 128, 128]), (64, [256] * 4)]
    assert [event.at for event in schedule.events] == [0.1, 0.3, 0.6]


def test_the_closing_event_never_comes_before_a_slot_that_grows() -> None:
    late = {"start.hidden": 0.25, "slot1.grow": "hidden", "slot1.at": 0.5, "close.at": 0.2}
    assert point(SLOTS, late).schedule == point(SLOTS, {"start.hidden": 0.25, "close.at": 0.5}).schedule
    idle = {"start.hidden": 0.25, "slot1.at": 0.5, "close.at": 0.2}
    assert [event.at for event in point(SLOTS, idle).schedule.events] == [0.2]


def test_halves_share_the_middle_layer() -> None:
    final = FINAL.with_layers(FINAL.layers[:3])
    for half, expected in (("lower", [128, 128, 64]), ("upper", [64, 128, 128])):
        given = {"start.mlp": 0.25, "slot1.grow": "mlp", "slot1.layers": half, "close.at": 0.7}
        schedule = point(SLOTS, given, final).schedule
        assert [layer.mlp for layer in schedule.shapes[1].layers] == expected


@pytest.mark.parametrize(
    ("data", "a", "b"),
    [
        (COMPOUND, {"start": 1, "at.1": 0.3}, {"start": 1, "at.2": 0.6}),
        (COMPOUND, {"start": 0.5, "at.1": 0.3, "at.2": 0.1}, {"start": 0.5, "at.1": 0.1, "at.2": 0.3}),
        (PER_DIMENSION, {"at.hidden": 0.3}, {"at.mlp": 0.6}),
        (SLOTS, {"slot1.grow": "both", "slot1.at": 0.3}, {"close.at": 0.6}),
        (
            SLOTS,
            {
                "start.hidden": 0.25,
                "slot1.grow": "hidden",
                "slot1.at": 0.3,
                "slot1.factor": 4,
                "close.at": 0.6,
            },
            {"start.hidden": 0.25, "close.at": 0.3},
        ),
    ],
)
def test_points_that_do_the_same_are_equal(
    data: dict[str, Any], a: dict[str, Any], b: dict[str, Any]
) -> None:
    assert point(data, a) == point(data, b)


STAYING = {"times": {"low": 0.1, "high": 1, "step": 0.1}}


@pytest.mark.parametrize(
    ("data", "parameters", "hidden"),
    [
        (COMPOUND, {"start": 0.25, "at.1": 0.4, "at.2": 1}, [16, 32]),
        (COMPOUND, {"start": 0.25, "at.1": 1, "at.2": 1}, [16]),
        (PER_DIMENSION, {"start.hidden": 0.5, "at.hidden": 1, "start.mlp": 0.5, "at.mlp": 0.3}, [32, 32]),
        (SLOTS, {"start.hidden": 0.25, "slot1.grow": "hidden", "slot1.at": 0.2, "close.at": 1}, [16, 32]),
    ],
)
def test_what_would_grow_at_the_end_of_the_budget_stays_small(
    data: dict[str, Any], parameters: dict[str, Any], hidden: list[int]
) -> None:
    bound = space({**data, **STAYING, "known": {"it": parameters}})
    assert [shape.hidden for shape in bound.at(bound.known["it"]).schedule.shapes] == hidden
    assert bound.times[-1] == bound.last == 0.9


def test_sizes_follow_an_unequal_final_shape() -> None:
    final = FINAL.with_layers((Layer.of_heads(100, [(8, 4), (4, 2), (2, 2)]), Layer.of_heads(7, [(6, 6)])))
    data = {**COMPOUND, "dims": ["hidden", "mlp", "heads", "key", "value"]}
    schedule = point(data, {"start": 0.5, "at.1": 0.2, "at.2": 0.2}, final).schedule
    assert schedule.start.layers == (Layer.of_heads(48, [(4, 2), (2, 1)]), Layer.of_heads(4, [(3, 3)]))
    assert schedule.final == final


def test_keys_are_even_under_rope() -> None:
    final = FINAL.with_layers((Layer.of_heads(8, [(6, 3), (2, 3)]),))
    data = {**COMPOUND, "dims": ["key"]}
    schedule = point(
        data, {"start": 0.3, "at.1": 0.2, "at.2": 0.2}, final, replace(PLAIN, positions="rope")
    ).schedule
    assert schedule.start.layers[0].heads == ((2, 3), (2, 3))
    assert schedule.events[0].expansions == (GrowKeys(6, heads=(0,)),)


def test_smallest_and_fixed_shapes() -> None:
    bound = space(PER_DIMENSION)
    keep = {"heads": 4, "key": 16, "value": 16}
    assert bound.smallest == Shape.uniform(hidden=16, layers=1, mlp=64, **keep)
    assert bound.fixed(0.5) == Shape.uniform(hidden=32, layers=2, mlp=128, **keep)
    assert (bound.grid, bound.last, bound.opened, bound.largest) == (0.05, 0.7, False, FINAL)
    with pytest.raises(ValueError, match=r"^a share must be above 0 and at most 1, not 0$"):
        bound.fixed(0)


def test_the_smallest_start_is_smallest_over_all_orders() -> None:
    large, small = Layer.of_heads(100, [(4, 4)]), Layer.of_heads(10, [(4, 4)])
    data = {**COMPOUND, "dims": ["layers"], "order": ["top", "bottom"]}
    assert space(data, FINAL.with_layers((large, small))).smallest.layers == (small,)


OPEN: dict[str, Any] = {
    **COMPOUND,
    "final": {
        "hidden": {"low": 16, "high": 96, "step": 16},
        "mlp": [4, 2.5],
        "heads": [2, 4],
        "key": [16],
        "value": [8, 16],
        "max_layers": 9,
    },
}


@pytest.mark.parametrize("limit", [None, {"parameters": 1.8e5}, {"inference_flops": 4e5}])
def test_an_open_final_shape_is_as_deep_as_the_limit_allows(limit: dict[str, float] | None) -> None:
    bound = space({**OPEN, "final": {**OPEN["final"], "limit": limit}})
    variant, depths = PLAIN, set()
    for seed in range(200):
        schedule = bound.sample(RandomTrial(seed)).schedule
        final = schedule.final
        deeper = final.with_layers((*final.layers, final.layers[0]))
        costs = [parameter_count(final, variant), parameter_count(deeper, variant)]
        if limit and "inference_flops" in limit:
            costs = [forward_flops(shape, variant, 1) // 128 for shape in (final, deeper)]
        most = next(iter(limit.values())) if limit else parameter_count(FINAL, variant)
        assert costs[0] <= most
        assert costs[1] > most or len(final.layers) == 9
        assert forward_flops(final, variant, 1) <= forward_flops(bound.largest, variant, 1)
        depths.add(len(final.layers))
    assert bound.opened
    assert len(depths) > 2
    assert max(depths) == 9
