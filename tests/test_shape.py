from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from nasgrow.shape import MAX_SIZE, MOST_HEADS, MOST_LAYERS, HeadGroup, Layer, Shape, Variant
from nasgrow.verify import PAPER
from tests.strategies import examples, layers

GROUP = HeadGroup(2, 4, 6)
LAYER = Layer(8, (GROUP,))
SHAPE = Shape(16, (LAYER,))
UNIFORM = {"hidden": 4, "layers": 2, "mlp": 8, "heads": 2, "key": 2, "value": 3}


def uniform(**changes: Any) -> Shape:
    return Shape.uniform(**{**UNIFORM, **changes})


# Frozen values


@pytest.mark.parametrize("kind", [list, iter])
def test_lists_and_iterators_become_tuples_so_that_the_result_is_hashable(kind: Callable[[Any], Any]) -> None:
    shape = Shape(16, kind([Layer(8, kind([GROUP]))]))
    assert shape == SHAPE
    assert hash(shape) == hash(SHAPE)


# Head groups


def test_neighbouring_groups_of_equal_sizes_merge() -> None:
    layer = Layer(8, (HeadGroup(1, 2, 3), HeadGroup(2, 2, 3), HeadGroup(3, 2, 3), HeadGroup(1, 4, 3)))
    assert layer.groups == (HeadGroup(6, 2, 3), HeadGroup(1, 4, 3))
    assert layer == Layer(8, (HeadGroup(6, 2, 3), HeadGroup(1, 4, 3)))


@pytest.mark.parametrize("between", [HeadGroup(1, 4, 3), HeadGroup(1, 2, 4)], ids=["key", "value"])
def test_groups_that_are_not_neighbours_stay_apart(between: HeadGroup) -> None:
    groups = (HeadGroup(1, 2, 3), between, HeadGroup(1, 2, 3))
    assert Layer(8, groups).groups == groups


@given(layers())
@examples(50)
def test_a_layer_is_the_same_however_its_heads_are_grouped(layer: Layer) -> None:
    singles = tuple(
        HeadGroup(1, group.key, group.value) for group in layer.groups for _ in range(group.count)
    )
    for twin in (Layer(layer.mlp, singles), Layer.of_heads(layer.mlp, layer.heads)):
        assert twin == layer
        assert hash(twin) == hash(layer)


def test_heads_are_the_groups_written_out() -> None:
    layer = Layer(8, (HeadGroup(2, 2, 3), HeadGroup(1, 4, 5)))
    assert layer.heads == ((2, 3), (2, 3), (4, 5))
    assert list(layer.spans) == [(range(0, 2), HeadGroup(2, 2, 3)), (range(2, 3), HeadGroup(1, 4, 5))]


@given(layers())
@examples(50)
def test_spans_cover_the_heads_in_order_with_their_sizes(layer: Layer) -> None:
    spans = list(layer.spans)
    assert [group for _, group in spans] == list(layer.groups)
    assert [index for span, _ in spans for index in span] == list(range(len(layer.heads)))
    assert all(layer.heads[index] == (group.key, group.value) for span, group in spans for index in span)


# Shapes


def test_a_uniform_shape_repeats_one_layer() -> None:
    assert uniform() == Shape(4, (Layer(8, (HeadGroup(2, 2, 3),)),) * 2)


def test_a_shape_reads_as_runs_of_equal_layers() -> None:
    mixed = Layer(3, (HeadGroup(2, 1, 2), HeadGroup(1, 4, 5)))
    assert str(SHAPE.with_layers([LAYER, LAYER, mixed])) == (
        "h=16, N=3: 2×[p=8, heads 2×(k=4, v=6)]; 1×[p=3, heads 2×(k=1, v=2) + 1×(k=4, v=5)]"
    )


# Refusals

BAD_SIZES: list[Any] = [0, -1, 2.0, True, "4", None]
SIZE_FIELDS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "group.count": ("head count", lambda size: HeadGroup(size, 1, 1)),
    "group.key": ("key size", lambda size: HeadGroup(1, size, 1)),
    "group.value": ("value size", lambda size: HeadGroup(1, 1, size)),
    "layer.mlp": ("MLP width", lambda size: Layer(size, (GROUP,))),
    "of_heads.mlp": ("MLP width", lambda size: Layer.of_heads(size, [(1, 1)])),
    "of_heads.key": ("key size", lambda size: Layer.of_heads(1, [(1, 1), (size, 1)])),
    "of_heads.value": ("value size", lambda size: Layer.of_heads(1, [(1, 1), (1, size)])),
    "shape.hidden": ("hidden size", lambda size: Shape(size, (LAYER,))),
    "variant.context": ("context", lambda size: Variant(vocab=2, context=size)),
    "variant.vocab": ("vocabulary", lambda size: Variant(vocab=size, context=1)),
    "uniform.hidden": ("hidden size", lambda size: uniform(hidden=size)),
    "uniform.layers": ("number of layers", lambda size: uniform(layers=size)),
    "uniform.mlp": ("MLP width", lambda size: uniform(mlp=size)),
    "uniform.heads": ("head count", lambda size: uniform(heads=size)),
    "uniform.key": ("key size", lambda size: uniform(key=size)),
    "uniform.value": ("value size", lambda size: uniform(value=size)),
    "variant.queries": ("queries per head", lambda size: replace(PAPER, queries=size)),
}


def refuses(message: str) -> pytest.RaisesExc[ValueError]:
    """Expect a ValueError with exactly this message."""
    return pytest.raises(ValueError, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize("size", BAD_SIZES, ids=repr)
@pytest.mark.parametrize("field", SIZE_FIELDS)
def test_a_bad_size_is_quoted_with_its_name(field: str, size: Any) -> None:
    what, make = SIZE_FIELDS[field]
    with refuses(f"{what} must be a positive integer, not {size!r}"):
        make(size)


@pytest.mark.parametrize("size", [MAX_SIZE + 1, 10**30])
@pytest.mark.parametrize("field", SIZE_FIELDS)
def test_a_size_that_must_be_mistyped_is_quoted_with_its_name(field: str, size: int) -> None:
    what, make = SIZE_FIELDS[field]
    most = {"head count": MOST_HEADS, "number of layers": MOST_LAYERS}.get(what, MAX_SIZE)
    with refuses(f"{what} must be at most {most}, not {size}"):
        make(size)


@pytest.mark.parametrize("key", [2, 4])
def test_heads_that_are_too_many_together_are_refused(key: int) -> None:
    with pytest.raises(
        ValueError, match=r"^(head count|number of heads of a layer) must be at most 1000, not "
    ):
        Layer(8, (HeadGroup(1000, 2, 2), HeadGroup(1, key, 2)))


def test_layers_that_are_too_many_are_refused() -> None:
    assert len(SHAPE.with_layers([LAYER] * 1000).layers) == 1000
    with refuses("number of layers must be at most 1000, not 1001"):
        SHAPE.with_layers([LAYER] * 1001)


@pytest.mark.parametrize("groups", [(), [], (4,), [4], (GROUP, None), (LAYER,)], ids=repr)
def test_a_layer_without_proper_head_groups_is_refused(groups: Any) -> None:
    with refuses(f"a layer needs a tuple of at least one HeadGroup, not {tuple(groups)!r}"):
        Layer(8, groups)


@pytest.mark.parametrize("of_layers", [(), [], (4,), [4], (LAYER, None), (GROUP,)], ids=repr)
def test_a_shape_without_proper_layers_is_refused(of_layers: Any) -> None:
    with refuses(f"a shape needs a tuple of at least one Layer, not {tuple(of_layers)!r}"):
        Shape(16, of_layers)


@pytest.mark.parametrize("groups", [None, 4, GROUP, LAYER], ids=repr)
def test_head_groups_that_are_no_tuple_are_quoted(groups: Any) -> None:
    with refuses(f"a layer needs a tuple of at least one HeadGroup, not {groups!r}"):
        Layer(4, groups)


@pytest.mark.parametrize("of_layers", [None, 4, GROUP, LAYER], ids=repr)
def test_layers_that_are_no_tuple_are_quoted(of_layers: Any) -> None:
    with refuses(f"a shape needs a tuple of at least one Layer, not {of_layers!r}"):
        Shape(1, of_layers)


def test_what_a_generator_gives_is_quoted_if_it_is_wrong() -> None:
    groups: Any = (part for part in (GROUP, 4))
    with refuses(f"a layer needs a tuple of at least one HeadGroup, not {(GROUP, 4)!r}"):
        Layer(8, groups)
    of_layers: Any = (part for part in (LAYER, 4))
    with refuses(f"a shape needs a tuple of at least one Layer, not {(LAYER, 4)!r}"):
        Shape(16, of_layers)


@pytest.mark.parametrize("value", ["tanh", "ReLU", "", None, 0, []], ids=repr)
@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("activation", "relu, gelu, silu"),
        ("positions", "learned, rope, none"),
        ("norm", "before, after"),
    ],
)
def test_an_unknown_choice_is_quoted_with_the_options(field: str, options: str, value: Any) -> None:
    choice: dict[str, Any] = {field: value}
    with refuses(f"{field} must be one of {options}, not {value!r}"):
        replace(PAPER, **choice)


@pytest.mark.parametrize("value", [0, 1, "yes", "true", None], ids=repr)
@pytest.mark.parametrize("field", ["gated", "causal", "final_norm", "tied", "biases", "qkv_bias", "qk_norm"])
def test_a_switch_that_is_no_boolean_is_quoted(field: str, value: Any) -> None:
    switch: dict[str, Any] = {field: value}
    with refuses(f"{field} must be true or false, not {value!r}"):
        replace(PAPER, **switch)


NO_NUMBERS: list[Any] = [float("nan"), float("inf"), float("-inf"), "1e-4", "x", None, True, False, 2j, [2.0]]


@pytest.mark.parametrize("value", [0, 0.0, -1e-4, *NO_NUMBERS], ids=repr)
def test_epsilon_must_be_a_number_above_zero(value: Any) -> None:
    with refuses(f"epsilon must be a finite number above 0, not {value!r}"):
        replace(PAPER, epsilon=value)


@pytest.mark.parametrize("value", [1, 1.0, 0.5, -10.0, *NO_NUMBERS], ids=repr)
def test_rope_base_must_be_a_number_above_one(value: Any) -> None:
    with refuses(f"rope_base must be a finite number above 1, not {value!r}"):
        replace(PAPER, rope_base=value)


@pytest.mark.parametrize("value", [(), [], 1.0, "0.5", (True,), (-1.0,), (float("nan"),), ("1",)], ids=repr)
def test_frequencies_must_be_numbers(value: Any) -> None:
    with refuses(f"rope_frequencies must be a list of finite numbers from 0 up, not {value!r}"):
        replace(PAPER, positions="rope", rope_frequencies=value)


def test_frequencies_need_rope_and_become_a_tuple() -> None:
    with refuses("rope_frequencies need positions: rope, not learned"):
        replace(PAPER, rope_frequencies=(1.0,))
    listed: Any = [1, 0.5]
    variant = replace(PAPER, positions="rope", rope_frequencies=listed)
    assert variant.rope_frequencies == (1.0, 0.5)
    assert hash(variant) == hash(replace(PAPER, positions="rope", rope_frequencies=(1.0, 0.5)))


def test_keys_are_as_many_as_the_frequencies_say_and_equal_under_qk_norm() -> None:
    def shape(*keys: int) -> Shape:
        return Shape(8, (Layer(4, tuple(HeadGroup(1, key, key) for key in keys)),))

    listed = replace(PAPER, positions="rope", rope_frequencies=(1.0, 0.5))
    listed.check(shape(4, 4))
    with refuses("layer 0: rope_frequencies lists 2 pairs, so key sizes must be 4, not 6"):
        listed.check(shape(4, 6))
    replace(PAPER, qk_norm=True).check(shape(3, 3))
    with refuses(
        "layer 0: qk_norm has one gain for all heads, so their key sizes must be equal, not 4 and 6"
    ):
        replace(PAPER, qk_norm=True).check(shape(4, 6))


def test_fields_of_later_releases_count_for_identities_only_where_they_are_set() -> None:
    assert set(replace(PAPER, tied=True).described()) == {
        *("activation", "gated", "causal", "positions", "final_norm", "tied", "queries", "norm", "epsilon"),
        *("rope_base", "vocab", "context"),
    }
    later: dict[str, Any] = {"biases": False, "qkv_bias": True, "qk_norm": True, "qk_epsilon": 1e-5}
    assert later.items() <= replace(PAPER, **later).described().items()


def test_epsilon_and_rope_base_may_be_whole_or_just_above_the_least() -> None:
    replace(PAPER, epsilon=1, rope_base=2)
    replace(PAPER, epsilon=5e-324, rope_base=1 + 2**-52)


# RoPE needs even keys


def test_rope_names_the_layer_and_the_odd_key_size() -> None:
    odd = Layer(8, (HeadGroup(1, 2, 1), HeadGroup(2, 7, 1)))
    with refuses("layer 1: RoPE rotates pairs, so key sizes must be even, not 7"):
        replace(PAPER, positions="rope").check(SHAPE.with_layers([LAYER, odd]))
