from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import sqrt
from random import Random
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasgrow.expansions import (
    Expansion,
    GrowKeys,
    Lineage,
    expand,
)
from nasgrow.growth.plan import TensorPlan, overlap, plan_growth, slabs, without
from nasgrow.params import Box, TensorSpec, table
from nasgrow.shape import HeadGroup, Layer, Shape, Variant
from nasgrow.verify import PAPER
from tests.strategies import examples, expansion_sequences, shapes, variants

Place = tuple[int, ...]
"""An index into a tensor with the table's axes."""

Kind = Literal["old", "zero", "free"]


@dataclass(frozen=True)
class Growth:
    """A growth with its plan."""

    old: Shape
    new: Shape
    lineage: Lineage
    variant: Variant

    @property
    def plans(self) -> dict[str, TensorPlan]:
        return plan_growth(self.old, self.new, self.lineage, self.variant)


def growth(old: Shape, *expansions: Expansion, variant: Variant = PAPER) -> Growth:
    return Growth(old, *expand(old, expansions), variant)


@st.composite
def growths(draw: st.DrawFn) -> Growth:
    variant = draw(variants())
    even_keys = variant.positions == "rope"
    old = draw(shapes(even_keys))
    return growth(old, *draw(expansion_sequences(old, max_size=5, even_keys=even_keys)), variant=variant)


def places(box: Box) -> Iterator[Place]:
    return product(*(range(start, stop) for start, stop in box))


def marks(sizes: tuple[int, ...], boxes: Iterable[Box]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """How many of the boxes hold each entry of a tensor; boxes must lie within it."""
    counts = np.zeros(sizes, dtype=np.int64)
    for box in boxes:
        assert all(0 <= start < stop <= size for (start, stop), size in zip(box, sizes, strict=True))
        counts[tuple(slice(start, stop) for start, stop in box)] += 1
    return counts


# Boxes


def there_is_one_plan_for_each_tensor_of_the_grown_model(growth: Growth) -> None:
    entries = table(growth.new, growth.variant)
    assert {name: plan.entry for name, plan in growth.plans.items()} == entries


def the_boxes_of_a_plan_are_disjoint_and_cover_the_tensor(growth: Growth) -> None:
    for plan in growth.plans.values():
        boxes = [copy.put for copy in plan.copies] + list(plan.zeros) + list(plan.free)
        assert (marks(plan.entry.sizes, boxes) == 1).all(), plan.entry.name
        assert plan.new == plan.zeros + plan.free


def every_old_value_is_copied_exactly_once(growth: Growth) -> None:
    taken: dict[str, list[Box]] = {}
    for plan in growth.plans.values():
        for copy in plan.copies:
            taken.setdefault(copy.source.name, []).append(copy.take)
    old = table(growth.old, growth.variant)
    assert set(taken) == set(old)
    for name, entry in old.items():
        assert (marks(entry.sizes, taken[name]) == 1).all(), name


# Entry by entry, from the shapes alone


def axis_sizes(shape: Shape, variant: Variant, layer: int | None, head: int | None) -> dict[str, int]:
    """The sizes of the axes of a tensor that belongs to this layer and head, if to any; E counts heads."""
    sizes = {"vocab": PAPER.vocab, "context": PAPER.context, "h": shape.hidden, "q": variant.queries}
    if layer is not None:
        sizes["p"] = shape.layers[layer].mlp
        sizes["E"] = len(shape.layers[layer].heads)
        if head is not None and head < sizes["E"]:
            sizes["k"], sizes["v"] = shape.layers[layer].heads[head]
    return sizes


def coordinates(entry: TensorSpec, place: Place) -> dict[str, int]:
    """The coordinates of one value; heads are numbered within their layer, not within their group."""
    found = dict(zip(entry.axes, place, strict=True))
    if entry.heads is not None:
        found["E"] += entry.heads.start
    return found


def expected_kind(growth: Growth, entry: TensorSpec, place: Place) -> Kind:
    """What the paper says about one value of a grown model."""
    origin = None if entry.layer is None else growth.lineage[entry.layer]
    if entry.layer is not None and origin is None:
        return "zero" if entry.row.closes == growth.variant.norm else "free"
    at = coordinates(entry, place)
    before = axis_sizes(growth.old, growth.variant, origin, at.get("E"))
    if "E" in at and at["E"] >= before["E"]:
        return "zero" if "E" in entry.row.zero else "free"
    beyond = {axis for axis, coordinate in at.items() if coordinate >= before[axis]}
    if not beyond:
        return "old"
    return "zero" if beyond & entry.row.zero else "free"


def expected_factor(growth: Growth, entry: TensorSpec, place: Place) -> float:
    if entry.role.endswith("norm"):
        return sqrt(growth.old.hidden / growth.new.hidden)
    if entry.role in ("key", "key_bias"):
        assert entry.layer is not None
        origin = growth.lineage[entry.layer]
        assert origin is not None
        head = coordinates(entry, place)["E"]
        return sqrt(growth.new.layers[entry.layer].heads[head][0] / growth.old.layers[origin].heads[head][0])
    return 1.0


def small(plans: dict[str, TensorPlan]) -> list[TensorPlan]:
    return [plan for plan in plans.values() if plan.entry.count <= 600]


@given(growths())
@examples(50)
def test_each_value_is_old_zero_or_free_as_the_table_says(growth: Growth) -> None:
    for plan in small(growth.plans):
        boxes: dict[Kind, list[Box]] = {
            "old": [copy.put for copy in plan.copies],
            "zero": list(plan.zeros),
            "free": list(plan.free),
        }
        planned = {place: kind for kind, found in boxes.items() for box in found for place in places(box)}
        expected = {
            place: expected_kind(growth, plan.entry, place)
            for place in product(*(range(size) for size in plan.entry.sizes))
        }
        assert planned == expected, plan.entry.name


@given(growths())
@examples(50)
def test_each_old_value_keeps_its_role_layer_and_coordinates_and_scales_as_the_paper_says(
    growth: Growth,
) -> None:
    for plan in small(growth.plans):
        for copy in plan.copies:
            assert copy.source.role == plan.entry.role
            if plan.entry.layer is not None:
                assert copy.source.layer == growth.lineage[plan.entry.layer]
            for put, take in zip(places(copy.put), places(copy.take), strict=True):
                assert coordinates(plan.entry, put) == coordinates(copy.source, take)
                assert copy.factor == pytest.approx(expected_factor(growth, plan.entry, put), rel=1e-12)


def nearest_layer(lineage: Lineage, layer: int | None) -> int | None:
    """The old layer that a layer was, or else the one next below it, or else the one next above it."""
    if layer is None:
        return None
    nearest_first = [*reversed(lineage[: layer + 1]), *lineage[layer:]]
    return next(origin for origin in nearest_first if origin is not None)


def the_pattern_is_the_first_source_or_else_the_last_group_of_the_nearest_layer(growth: Growth) -> None:
    old = table(growth.old, growth.variant).values()
    for plan in growth.plans.values():
        layer = nearest_layer(growth.lineage, plan.entry.layer)
        alike = [entry for entry in old if (entry.role, entry.layer) == (plan.entry.role, layer)]
        assert plan.pattern == (plan.copies[0].source if plan.copies else alike[-1])
        assert plan.pattern in alike


def a_tensor_is_unchanged_if_it_holds_one_whole_old_tensor_and_nothing_else(growth: Growth) -> None:
    for plan in growth.plans.values():
        sources = Counter(copy.source.name for copy in plan.copies)
        same = not plan.new and len(sources) == 1 and plan.copies[0].source.sizes == plan.entry.sizes
        assert plan.unchanged == same, plan.entry.name


@given(growths())
@examples(50)
def test_plans_are_complete_and_know_what_they_copy(growth: Growth) -> None:
    """Several checks of one growth, because drawing it takes longer than all of them."""
    for check in (
        there_is_one_plan_for_each_tensor_of_the_grown_model,
        the_boxes_of_a_plan_are_disjoint_and_cover_the_tensor,
        every_old_value_is_copied_exactly_once,
        the_pattern_is_the_first_source_or_else_the_last_group_of_the_nearest_layer,
        a_tensor_is_unchanged_if_it_holds_one_whole_old_tensor_and_nothing_else,
    ):
        check(growth)


# By hand

LAYER = Layer(2, (HeadGroup(3, 2, 2),))
SHAPE = Shape(4, (LAYER, LAYER))


def one_layer(*heads: tuple[int, int]) -> Shape:
    return Shape(4, (Layer.of_heads(2, heads),))


def summary(plan: TensorPlan) -> dict[str, object]:
    return {
        "old": [(copy.source.name, copy.take, copy.put) for copy in plan.copies],
        "zero": list(plan.zeros),
        "free": list(plan.free),
    }


def test_growing_the_key_of_an_inner_head_splits_its_group() -> None:
    plans = growth(SHAPE, GrowKeys(8, layers=(0,), heads=(1,))).plans
    assert [plans[f"layers.0.heads.{group}.key"].copies[0].take for group in range(3)] == [
        ((0, 4), (0, 1), (0, 2)),
        ((0, 4), (1, 2), (0, 2)),
        ((0, 4), (2, 3), (0, 2)),
    ]
    assert [plans[f"layers.0.heads.{group}.key"].copies[0].factor for group in range(3)] == [1.0, 2.0, 1.0]
    assert plans["layers.0.heads.1.key"].zeros == (((0, 4), (0, 1), (2, 8)),)
    assert plans["layers.0.heads.1.query"].free == (((0, 4), (0, 1), (0, 1), (2, 8)),)
    assert not plans["layers.0.heads.1.query"].zeros
    assert plans["layers.1.heads.0.key"].unchanged


def test_groups_that_merge_keep_a_factor_each() -> None:
    plans = growth(one_layer((1, 3), (2, 3), (2, 3)), GrowKeys(4)).plans
    merged = plans["layers.0.heads.0.key"]
    assert summary(merged) == {
        "old": [
            ("layers.0.heads.0.key", ((0, 4), (0, 1), (0, 1)), ((0, 4), (0, 1), (0, 1))),
            ("layers.0.heads.1.key", ((0, 4), (0, 2), (0, 2)), ((0, 4), (1, 3), (0, 2))),
        ],
        "zero": [((0, 4), (0, 1), (1, 4)), ((0, 4), (1, 3), (2, 4))],
        "free": [],
    }
    assert [copy.factor for copy in merged.copies] == pytest.approx([2.0, sqrt(2.0)])


# Boxes of boxes, against the sets of their entries


def boxes(axes: int) -> st.SearchStrategy[Box]:
    """Boxes that lie apart, touch, overlap or contain one another."""
    sides = st.tuples(st.integers(0, 5), st.integers(1, 4)).map(lambda side: (side[0], side[0] + side[1]))
    return st.tuples(*[sides] * axes)


@st.composite
def neighbours(draw: st.DrawFn, most: int) -> tuple[Box, list[Box]]:
    """One box, and up to ``most`` others with as many axes."""
    axes = draw(st.integers(1, 3))
    return draw(boxes(axes)), draw(st.lists(boxes(axes), min_size=1, max_size=most))


def assert_cut_into(pieces: list[Box], expected: set[Place]) -> None:
    """The pieces are disjoint, none is empty, and together they are the expected entries."""
    found = Counter(place for piece in pieces for place in places(piece))
    assert set(found) == expected
    assert set(found.values()) <= {1}
    assert all(start < stop for piece in pieces for start, stop in piece)


@given(neighbours(most=1), st.randoms(use_true_random=False))
@examples(200)
def test_slabs_are_what_the_inner_box_leaves_cut_axis_by_axis(
    pair: tuple[Box, list[Box]], random: Random
) -> None:
    whole, (inner,) = pair
    order = random.sample(range(len(whole)), len(whole))
    found = list(slabs(whole, inner, order))
    assert_cut_into([slab for _, slab in found], set(places(whole)) - set(places(inner)))
    assert max(Counter(axis for axis, _ in found).values(), default=0) <= 2
    for axis, slab in found:
        assert not set(range(*slab[axis])) & set(range(*inner[axis]))
        for before in order[: order.index(axis)]:
            assert set(range(*slab[before])) <= set(range(*inner[before]))
        for after in order[order.index(axis) + 1 :]:
            assert slab[after] == whole[after]


@given(neighbours(most=4))
@examples(200)
def test_without_leaves_the_entries_that_are_in_no_hole(case: tuple[Box, list[Box]]) -> None:
    whole, holes = case
    left = set(places(whole)).difference(*(places(hole) for hole in holes))
    assert_cut_into(without(whole, holes), left)


@given(neighbours(most=1))
@examples(200)
def test_the_overlap_holds_the_entries_of_both_boxes(pair: tuple[Box, list[Box]]) -> None:
    one, (other,) = pair
    shared = overlap(one, other)
    assert shared == overlap(other, one)
    both = set(places(one)) & set(places(other))
    assert (set() if shared is None else set(places(shared))) == both
    assert (shared is None) == (not both)
