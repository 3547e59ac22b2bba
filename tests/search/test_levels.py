"""Levels: which layers exist, and how a size follows its share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasgrow.search.spaces.levels import DIMS, ORDERS, Level, Order, ordered, rising, shape_at
from nasgrow.shape import Shape, Variant
from tests.search.asking import FINAL
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
)
def test_a_higher_level_is_nowhere_smaller(
    final: Shape, order: Order, shares: dict[str, float], factor: float
) -> None:
    level = Level.of(shares, len(final.layers))  # type: ignore[arg-type]
    low, old = shape_at(final, level, order, Variant())
    high, new = shape_at(final, level.times(DIMS, factor, range(len(final.layers))), order, Variant())
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
    assert rising(FINAL, almost, [(0.5, whole)], "top", Variant()).events == ()


def test_of_levels_at_one_time_the_last_counts() -> None:
    start, middle, whole = (Level.of({"hidden": share}, 4) for share in (0.25, 0.5, 1.0))
    both = rising(FINAL, start, [(0.5, middle), (0.5, whole)], "top", Variant())
    assert both == rising(FINAL, start, [(0.5, whole)], "top", Variant())
