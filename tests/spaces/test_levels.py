"""Levels: which layers exist, and how a size follows its share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasgrow.shape import Shape
from nasgrow.spaces.levels import (
    DIMS,
    ORDERS,
    Dim,
    Level,
    Order,
    Rounding,
    ordered,
    rising,
    shape_at,
    size_at,
)
from tests.spaces.asking import FINAL, PLAIN
from tests.strategies import examples, shapes


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("top", [0, 1, 2, 3, 4, 5]),
        ("bottom", [5, 4, 3, 2, 1, 0]),
        ("middle", [0, 5, 1, 4, 2, 3]),
        ("interleave", [0, 3, 1, 4, 2, 5]),
    ],
)
def test_orders(order: Order, expected: list[int]) -> None:
    assert list(ordered(order, 6)) == expected


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", range(1, 40))
def test_an_order_holds_every_layer_once(order: Order, count: int) -> None:
    assert sorted(ordered(order, count)) == list(range(count))


@examples(100)
@given(
    shapes(),
    st.sampled_from(ORDERS),
    st.dictionaries(st.sampled_from(DIMS), st.floats(0.01, 1)),
    st.floats(1, 9),
    st.builds(Rounding, *[st.none() | st.integers(1, 12)] * 4),
)
def test_a_higher_level_is_nowhere_smaller(
    final: Shape, order: Order, shares: dict[str, float], factor: float, rounding: Rounding
) -> None:
    level = Level.of(shares, len(final.layers))  # type: ignore[arg-type]
    low, old = shape_at(final, level, order, PLAIN, rounding)
    higher = level.times(DIMS, factor, range(len(final.layers)))
    high, new = shape_at(final, higher, order, PLAIN, rounding)
    assert set(old) <= set(new)
    assert low.hidden <= high.hidden <= final.hidden
    for before, after in ((low.layers[old.index(i)], high.layers[new.index(i)]) for i in old):
        assert before.mlp <= after.mlp
        assert before.head_count <= after.head_count
        for (key, value), (larger_key, larger_value) in zip(before.heads, after.heads, strict=False):
            assert key <= larger_key
            assert value <= larger_value


def test_only_the_named_layers_are_raised_within() -> None:
    level = Level.of({"mlp": 0.25, "hidden": 0.25}, 4).times(["mlp", "hidden"], 2, range(2, 4))
    assert [within.mlp for within in level.within] == [0.25, 0.25, 0.5, 0.5]
    assert level.hidden == 0.5


def test_levels_that_change_no_size_give_no_event() -> None:
    almost = Level.of({"hidden": 0.999}, 4)
    whole = Level.of({}, 4)
    assert rising(FINAL, almost, [(0.5, whole)], "top", PLAIN, Rounding()).events == ()


def test_of_levels_at_one_time_the_last_counts() -> None:
    start, middle, whole = (Level.of({"hidden": share}, 4) for share in (0.25, 0.5, 1.0))
    both = rising(FINAL, start, [(0.5, middle), (0.5, whole)], "top", PLAIN, Rounding())
    assert both == rising(FINAL, start, [(0.5, whole)], "top", PLAIN, Rounding())


@pytest.mark.parametrize(
    ("dim", "whole", "share", "size"),
    [
        ("hidden", 32, 0.71, 24),
        ("mlp", 128, 0.71, 88),
        ("mlp", 256, 0.71, 184),
        ("hidden", 768, 0.71, 576),
        ("mlp", 4096, 0.001, 64),
        ("key", 16, 0.71, 12),
        ("value", 64, 0.71, 48),
        ("hidden", 100, 0.71, 72),
        ("hidden", 33, 0.71, 23),
        ("heads", 12, 0.71, 9),
        ("layers", 12, 0.71, 9),
        ("hidden", 768, 1.0, 768),
    ],
)
def test_sizes_are_multiples_that_suit_devices(dim: Dim, whole: int, share: float, size: int) -> None:
    assert size_at(dim, share, whole, PLAIN, Rounding()) == size


def test_a_multiple_can_be_declared() -> None:
    assert size_at("hidden", 0.71, 32, PLAIN, Rounding(hidden=1)) == 23
    assert size_at("hidden", 0.71, 768, PLAIN, Rounding(hidden=256)) == 512
    assert size_at("hidden", 0.95, 100, PLAIN, Rounding(hidden=64)) == 64
    assert size_at("hidden", 1.0, 100, PLAIN, Rounding(hidden=64)) == 100, "the final size stays as it is"
    assert size_at("key", 0.6, 30, replace(PLAIN, positions="rope"), Rounding(key=3)) == 18, (
        "pairs, and threes"
    )
