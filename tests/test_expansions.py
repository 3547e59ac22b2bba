from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasgrow.expansions import (
    AddHeads,
    Expansion,
    GrowHidden,
    GrowKeys,
    GrowMlp,
    GrowValues,
    InsertLayers,
    Lineage,
    between,
    diff,
    expand,
)
from nasgrow.shape import HeadGroup, Layer, Shape
from tests.strategies import examples, expansion_sequences, expansions, shapes

LOW = Layer(4, (HeadGroup(3, 2, 3),))
MIDDLE = Layer(6, (HeadGroup(1, 2, 3), HeadGroup(1, 5, 4)))
HIGH = Layer(8, (HeadGroup(4, 4, 4),))
FRESH = Layer(1, (HeadGroup(1, 1, 1),))


def stack(*layers: Layer, hidden: int = 8) -> Shape:
    return Shape(hidden, layers)


SHAPE = stack(LOW, MIDDLE, HIGH)


def one_layer(*heads: tuple[int, int]) -> Shape:
    return stack(Layer.of_heads(4, heads))


def groups_of(shape: Shape, layer: int = 0) -> list[tuple[int, int, int]]:
    return [(group.count, group.key, group.value) for group in shape.layers[layer].groups]


def refuses(message: str) -> pytest.RaisesExc[ValueError]:
    """Expect a ValueError with exactly this message."""
    return pytest.raises(ValueError, match=f"^{re.escape(message)}$")


@st.composite
def growths(draw: st.DrawFn) -> tuple[Shape, list[Expansion]]:
    shape = draw(shapes())
    return shape, draw(expansion_sequences(shape))


@st.composite
def steps(draw: st.DrawFn) -> tuple[Shape, Expansion]:
    shape = draw(shapes())
    return shape, draw(expansions(shape))


# Growing the MLP


def test_grow_mlp_widens_every_layer() -> None:
    grown = GrowMlp(9)(SHAPE)
    assert [layer.mlp for layer in grown.layers] == [9, 9, 9]
    assert [layer.groups for layer in grown.layers] == [layer.groups for layer in SHAPE.layers]
    assert grown.hidden == 8


def test_grow_mlp_widens_the_chosen_layers_alone() -> None:
    grown = GrowMlp(7, layers=(0, 1))(SHAPE)
    assert [layer.mlp for layer in grown.layers] == [7, 7, 8]


# Adding heads


def test_add_heads_repeats_the_last_head_of_each_layer() -> None:
    grown = AddHeads(5)(SHAPE)
    assert groups_of(grown, 0) == [(5, 2, 3)]
    assert groups_of(grown, 1) == [(1, 2, 3), (4, 5, 4)]
    assert groups_of(grown, 2) == [(5, 4, 4)]
    assert [layer.mlp for layer in grown.layers] == [4, 6, 8]


def test_add_heads_concerns_the_chosen_layers_alone() -> None:
    grown = AddHeads(4, layers=(1,))(SHAPE)
    assert grown.layers == (LOW, Layer(6, (HeadGroup(1, 2, 3), HeadGroup(3, 5, 4))), HIGH)


@pytest.mark.parametrize(
    ("expansion", "expected"),
    [
        (AddHeads(4, layers=(0,), key=6, value=7), [(3, 2, 3), (1, 6, 7)]),
        (AddHeads(5, layers=(0,), key=1), [(3, 2, 3), (2, 1, 3)]),
        (AddHeads(5, layers=(0,), value=1), [(3, 2, 3), (2, 2, 1)]),
        (AddHeads(5, layers=(0,), key=2, value=3), [(5, 2, 3)]),
    ],
    ids=["key and value", "key", "value", "same as the last"],
)
def test_added_heads_come_last_with_the_given_sizes(
    expansion: AddHeads, expected: list[tuple[int, int, int]]
) -> None:
    assert groups_of(expansion(SHAPE)) == expected


# Growing keys and values


def test_grow_keys_grows_every_head_of_every_layer() -> None:
    grown = GrowKeys(6)(SHAPE)
    assert groups_of(grown, 0) == [(3, 6, 3)]
    assert groups_of(grown, 1) == [(1, 6, 3), (1, 6, 4)]
    assert groups_of(grown, 2) == [(4, 6, 4)]
    assert [layer.mlp for layer in grown.layers] == [4, 6, 8]


def test_grow_values_grows_every_head_of_every_layer() -> None:
    grown = GrowValues(6)(SHAPE)
    assert groups_of(grown, 0) == [(3, 2, 6)]
    assert groups_of(grown, 1) == [(1, 2, 6), (1, 5, 6)]
    assert groups_of(grown, 2) == [(4, 4, 6)]
    assert [layer.mlp for layer in grown.layers] == [4, 6, 8]


def test_grow_keys_concerns_the_chosen_layers_and_heads_alone() -> None:
    grown = GrowKeys(5, layers=(0, 2), heads=(0, 2))(SHAPE)
    assert grown.layers[0].heads == ((5, 3), (2, 3), (5, 3))
    assert grown.layers[1] == MIDDLE
    assert grown.layers[2].heads == ((5, 4), (4, 4), (5, 4), (4, 4))


def test_grow_values_concerns_the_chosen_layers_and_heads_alone() -> None:
    grown = GrowValues(9, layers=(1,), heads=(1,))(SHAPE)
    assert grown.layers == (LOW, Layer.of_heads(6, [(2, 3), (5, 9)]), HIGH)


@pytest.mark.parametrize("grow", [GrowKeys, GrowValues])
def test_growing_an_inner_head_splits_its_group_and_growing_the_rest_merges_it(
    grow: type[GrowKeys] | type[GrowValues],
) -> None:
    shape = one_layer((2, 2), (2, 2), (2, 2))
    split = grow(5, heads=(1,))(shape)
    assert [group.count for group in split.layers[0].groups] == [1, 1, 1]
    merged = grow(5, heads=(0, 2))(split)
    assert [group.count for group in merged.layers[0].groups] == [3]
    assert merged == grow(5)(shape) == grow(5)(split)


def test_groups_merge_when_a_smaller_one_catches_up() -> None:
    assert groups_of(GrowKeys(5)(one_layer((2, 3), (2, 3), (5, 3)))) == [(3, 5, 3)]


def test_groups_with_other_values_stay_apart_when_keys_are_levelled() -> None:
    assert groups_of(GrowKeys(5)(one_layer((2, 3), (5, 4)))) == [(1, 5, 3), (1, 5, 4)]


# Growing the hidden size


def test_grow_hidden_changes_the_hidden_size_alone() -> None:
    assert GrowHidden(11)(SHAPE) == Shape(11, (LOW, MIDDLE, HIGH))


# Inserting layers


@pytest.mark.parametrize(
    ("expansion", "layers", "lineage"),
    [
        (InsertLayers((0,)), (LOW, LOW, MIDDLE, HIGH), (None, 0, 1, 2)),
        (InsertLayers((1,)), (LOW, LOW, MIDDLE, HIGH), (0, None, 1, 2)),
        (InsertLayers((2,)), (LOW, MIDDLE, MIDDLE, HIGH), (0, 1, None, 2)),
        (InsertLayers((3,)), (LOW, MIDDLE, HIGH, HIGH), (0, 1, 2, None)),
        (InsertLayers((0, 0)), (LOW, LOW, LOW, MIDDLE, HIGH), (None, None, 0, 1, 2)),
        (InsertLayers((3, 3)), (LOW, MIDDLE, HIGH, HIGH, HIGH), (0, 1, 2, None, None)),
        (InsertLayers((2, 0)), (LOW, LOW, MIDDLE, MIDDLE, HIGH), (None, 0, 1, None, 2)),
        (InsertLayers((2, 2), FRESH), (LOW, MIDDLE, FRESH, FRESH, HIGH), (0, 1, None, None, 2)),
        (
            InsertLayers((0, 1, 3), FRESH),
            (FRESH, LOW, FRESH, MIDDLE, HIGH, FRESH),
            (None, 0, None, 1, 2, None),
        ),
    ],
    ids=str,
)
def test_insert_layers_puts_new_layers_before_the_old_ones_named(
    expansion: InsertLayers, layers: tuple[Layer, ...], lineage: Lineage
) -> None:
    assert expansion(SHAPE) == stack(*layers)
    assert expansion.lineage(3) == lineage
    assert expand(SHAPE, [expansion]) == (stack(*layers), lineage)


# The expansions as values


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (GrowMlp(5, (2, 0, 2)), GrowMlp(5, (0, 2))),
        (AddHeads(5, (2, 0, 2)), AddHeads(5, (0, 2))),
        (GrowKeys(5, (1, 0), (2, 0, 2)), GrowKeys(5, (0, 1), (0, 2))),
        (GrowValues(5, (1, 0), (2, 0, 2)), GrowValues(5, (0, 1), (0, 2))),
        (InsertLayers((2, 0, 2)), InsertLayers((0, 2, 2))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_order_in_which_indices_are_named_does_not_matter(one: Expansion, other: Expansion) -> None:
    assert one == other
    assert hash(one) == hash(other)


def test_a_position_named_twice_is_not_one_named_once() -> None:
    assert InsertLayers((1, 1)) != InsertLayers((1,))


def test_lists_of_indices_become_tuples() -> None:
    indices: Any = [1, 0]
    assert GrowKeys(5, indices, indices) == GrowKeys(5, (0, 1), (0, 1))
    assert InsertLayers(indices).at == (0, 1)


def test_indices_may_come_from_a_generator() -> None:
    def indices() -> Any:
        return (index for index in (2, 0, 2))

    assert InsertLayers(indices()) == InsertLayers((0, 2, 2))
    assert InsertLayers(indices()).at == (0, 2, 2)
    assert InsertLayers(indices(), FRESH)(SHAPE) == stack(FRESH, LOW, MIDDLE, FRESH, FRESH, HIGH)
    assert GrowMlp(5, indices()) == GrowMlp(5, (0, 2))
    assert GrowKeys(5, indices(), indices()) == GrowKeys(5, (0, 2), (0, 2))


# What every expansion refuses

BAD_SIZES: list[Any] = [0, -1, 2.0, True, "4"]
SIZED: dict[str, tuple[str, Callable[[Any], object]]] = {
    "GrowMlp.to": ("MLP width", lambda size: GrowMlp(size)),
    "AddHeads.to": ("number of heads", lambda size: AddHeads(size)),
    "AddHeads.key": ("key size", lambda size: AddHeads(5, key=size)),
    "AddHeads.value": ("value size", lambda size: AddHeads(5, value=size)),
    "GrowKeys.to": ("key size", lambda size: GrowKeys(size)),
    "GrowValues.to": ("value size", lambda size: GrowValues(size)),
    "GrowHidden.to": ("hidden size", lambda size: GrowHidden(size)),
}
INDEXED: dict[str, tuple[str, Callable[[Any], object]]] = {
    "GrowMlp.layers": ("layers", lambda indices: GrowMlp(9, indices)),
    "AddHeads.layers": ("layers", lambda indices: AddHeads(9, indices)),
    "GrowKeys.layers": ("layers", lambda indices: GrowKeys(9, indices)),
    "GrowKeys.heads": ("heads", lambda indices: GrowKeys(9, heads=indices)),
    "GrowValues.layers": ("layers", lambda indices: GrowValues(9, indices)),
    "GrowValues.heads": ("heads", lambda indices: GrowValues(9, heads=indices)),
    "InsertLayers.at": ("positions", lambda indices: InsertLayers(indices)),
}


@pytest.mark.parametrize("size", BAD_SIZES, ids=repr)
@pytest.mark.parametrize("field", SIZED)
def test_a_bad_size_is_quoted_with_its_name(field: str, size: Any) -> None:
    what, make = SIZED[field]
    with refuses(f"{what} must be a positive integer, not {size!r}"):
        make(size)


@pytest.mark.parametrize("size", [10**9 + 1, 10**30])
@pytest.mark.parametrize("field", SIZED)
def test_a_size_that_must_be_mistyped_is_quoted(field: str, size: int) -> None:
    what, make = SIZED[field]
    with refuses(f"{what} must be at most {1000 if what == 'number of heads' else 10**9}, not {size}"):
        make(size)


@pytest.mark.parametrize("index", [-1, 1.0, True, "1", None], ids=repr)
@pytest.mark.parametrize("field", INDEXED)
def test_a_bad_index_is_quoted(field: str, index: Any) -> None:
    what, make = INDEXED[field]
    with refuses(f"{what} are numbered from 0, {index!r} is not one"):
        make((0, index))


@pytest.mark.parametrize("indices", ["0", "01", "", b"\x00", b"", 0, 2, 1.5, True], ids=repr)
@pytest.mark.parametrize("field", INDEXED)
def test_indices_must_be_a_list(field: str, indices: Any) -> None:
    what, make = INDEXED[field]
    with refuses(f"{what} must be a list of indices, not {indices!r}"):
        make(indices)


@pytest.mark.parametrize("kind", [tuple, list, iter])
@pytest.mark.parametrize("field", INDEXED)
def test_an_empty_choice_is_refused_by_name(field: str, kind: Callable[[Any], Any]) -> None:
    what, make = INDEXED[field]
    with refuses(f"{what} must name at least one"):
        make(kind([]))


@pytest.mark.parametrize("layer", [4, "LOW", (LOW,), HeadGroup(1, 1, 1)], ids=repr)
def test_an_inserted_layer_must_be_a_layer(layer: Any) -> None:
    with refuses(f"the sizes of a new layer must be a Layer, not {layer!r}"):
        InsertLayers((0,), layer)


REFUSED: list[tuple[Expansion, str]] = [
    # shrinking
    (GrowMlp(7), "layer 2: MLP width cannot shrink from 8 to 7"),
    (GrowMlp(3, layers=(0,)), "layer 0: MLP width cannot shrink from 4 to 3"),
    (GrowMlp(5, layers=(0, 1)), "layer 1: MLP width cannot shrink from 6 to 5"),
    (AddHeads(3), "layer 2: number of heads cannot shrink from 4 to 3"),
    (AddHeads(1, layers=(1,)), "layer 1: number of heads cannot shrink from 2 to 1"),
    (GrowKeys(4), "layer 1, head 1: key size cannot shrink from 5 to 4"),
    (GrowKeys(3, layers=(2,), heads=(1,)), "layer 2, head 1: key size cannot shrink from 4 to 3"),
    (GrowValues(3), "layer 1, head 1: value size cannot shrink from 4 to 3"),
    (GrowValues(2, layers=(0,), heads=(2,)), "layer 0, head 2: value size cannot shrink from 3 to 2"),
    (GrowHidden(7), "hidden size cannot shrink from 8 to 7"),
    # shrinking in several places: the first is named
    (GrowMlp(3), "layer 0: MLP width cannot shrink from 4 to 3"),
    (AddHeads(1, layers=(2, 1)), "layer 1: number of heads cannot shrink from 2 to 1"),
    (GrowKeys(3, layers=(1, 2)), "layer 1, head 1: key size cannot shrink from 5 to 3"),
    (GrowValues(2, layers=(1,)), "layer 1, head 0: value size cannot shrink from 3 to 2"),
    # nothing grows
    (GrowMlp(4, layers=(0,)), "MLP width is 4 already, it must grow"),
    (AddHeads(2, layers=(1,)), "number of heads is 2 already, it must grow"),
    (AddHeads(3, layers=(0,), key=9), "number of heads is 3 already, it must grow"),
    (GrowKeys(2, layers=(0, 1), heads=(0,)), "key size is 2 already, it must grow"),
    (GrowValues(4, layers=(1, 2), heads=(1,)), "value size is 4 already, it must grow"),
    (GrowHidden(8), "hidden size is 8 already, it must grow"),
    # what does not exist
    (GrowMlp(9, layers=(0, 3)), "there is no layer 3; layers are numbered 0 to 2"),
    (AddHeads(9, layers=(4, 1)), "there is no layer 4; layers are numbered 0 to 2"),
    (GrowKeys(9, layers=(3,)), "there is no layer 3; layers are numbered 0 to 2"),
    (GrowValues(9, layers=(3,)), "there is no layer 3; layers are numbered 0 to 2"),
    (GrowKeys(9, layers=(0,), heads=(3, 0)), "layer 0: there is no head 3; heads are numbered 0 to 2"),
    (GrowKeys(9, heads=(2,)), "layer 1: there is no head 2; heads are numbered 0 to 1"),
    (GrowValues(9, layers=(2,), heads=(4,)), "layer 2: there is no head 4; heads are numbered 0 to 3"),
    (InsertLayers((4,)), "cannot insert a layer at 4; positions are 0 to 3"),
    (InsertLayers((5, 0)), "cannot insert a layer at 5; positions are 0 to 3"),
]


@pytest.mark.parametrize(("expansion", "message"), REFUSED, ids=str)
def test_what_cannot_be_done_is_refused_with_the_sizes(expansion: Expansion, message: str) -> None:
    with refuses(message):
        expansion(SHAPE)
    with refuses(message):
        expand(SHAPE, [expansion])


# Sequences


def test_expand_applies_in_order_and_numbers_layers_as_they_are_at_each_step() -> None:
    grown, lineage = expand(SHAPE, [InsertLayers((1,), FRESH), GrowMlp(3, layers=(1,)), GrowHidden(9)])
    assert grown == stack(LOW, Layer(3, FRESH.groups), MIDDLE, HIGH, hidden=9)
    assert lineage == (0, None, 1, 2)


def test_lineages_of_several_insertions_compose() -> None:
    grown, lineage = expand(SHAPE, [InsertLayers((0, 2)), InsertLayers((2, 4, 5), FRESH)])
    assert grown == stack(LOW, LOW, FRESH, MIDDLE, MIDDLE, FRESH, HIGH, FRESH)
    assert lineage == (None, 0, None, 1, None, None, 2, None)


@pytest.mark.parametrize("stranger", ["GrowMlp", 4, None, GrowMlp, LOW], ids=repr)
def test_what_is_no_expansion_is_refused_by_expand(stranger: Any) -> None:
    with refuses(f"{stranger!r} is not one of the six expansions"):
        expand(SHAPE, [stranger])


@pytest.mark.parametrize("nothing", [None, 5, 1.5, SHAPE], ids=repr)
def test_what_is_no_list_at_all_is_quoted(nothing: Any) -> None:
    with refuses(f"expansions must be a list, not {nothing!r}"):
        expand(SHAPE, nothing)


@given(growths())
@examples(60)
def test_no_sequence_shrinks_any_size_of_the_layers_it_started_with(
    growth: tuple[Shape, list[Expansion]],
) -> None:
    old, sequence = growth
    new, lineage = expand(old, sequence)
    assert new.hidden >= old.hidden
    assert len(lineage) == len(new.layers)
    assert [origin for origin in lineage if origin is not None] == list(range(len(old.layers)))
    for layer, origin in zip(new.layers, lineage, strict=True):
        assert origin is None or _contains(layer, old.layers[origin])


def _contains(new: Layer, old: Layer) -> bool:
    """Whether no size of ``old`` is larger than in ``new``; heads keep their numbers."""
    return (
        new.mlp >= old.mlp
        and len(new.heads) >= len(old.heads)
        and all(k >= a and v >= b for (k, v), (a, b) in zip(new.heads, old.heads, strict=False))
    )


# The difference of two shapes


@given(growths())
@examples(120)
def test_applying_the_difference_gives_the_larger_shape_exactly(
    growth: tuple[Shape, list[Expansion]],
) -> None:
    old, sequence = growth
    new, _ = expand(old, sequence)
    assert expand(old, diff(old, new))[0] == new


_TAKEN = r"layer \d+ takes layer \d+"
_UNFIT = r"not layer \d+: (MLP width|heads|(key|value) size of head \d+) would (shrink|drop) from \d+ to \d+"
NO_WAY = (
    r"^((hidden size|the number of layers) cannot shrink from \d+ to \d+"
    rf"|layer \d+ has nothing to grow into: ({_TAKEN}|{_UNFIT})(; ({_TAKEN}|{_UNFIT}))*)$"
)


@given(steps())
@examples(60)
def test_there_is_no_way_back(step: tuple[Shape, Expansion]) -> None:
    old, expansion = step
    with pytest.raises(ValueError, match=NO_WAY):
        diff(expansion(old), old)


def uniform(
    hidden: int = 4, layers: int = 2, mlp: int = 8, heads: int = 2, key: int = 2, value: int = 3
) -> Shape:
    return Shape.uniform(hidden=hidden, layers=layers, mlp=mlp, heads=heads, key=key, value=value)


READABLE: dict[str, tuple[Shape, Shape, tuple[Expansion, ...]]] = {
    "hidden": (uniform(), uniform(hidden=6), (GrowHidden(6),)),
    "mlp": (uniform(), uniform(mlp=9), (GrowMlp(9),)),
    "heads": (uniform(), uniform(heads=4), (AddHeads(4, key=2, value=3),)),
    "keys": (uniform(), uniform(key=4), (GrowKeys(4),)),
    "values": (uniform(), uniform(value=4), (GrowValues(4),)),
    "layers, new ones on top": (
        uniform(),
        uniform(layers=4),
        (InsertLayers((2, 2), uniform().layers[0]),),
    ),
    "everything within the layers": (
        uniform(),
        uniform(hidden=6, mlp=9, heads=4, key=4, value=5),
        (GrowHidden(6), GrowMlp(9), GrowKeys(4), GrowValues(5), AddHeads(4, key=4, value=5)),
    ),
    "everything": (
        uniform(),
        uniform(hidden=6, layers=3, mlp=9, heads=4, key=4, value=5),
        (
            GrowHidden(6),
            GrowMlp(9),
            GrowKeys(4),
            GrowValues(5),
            AddHeads(4, key=4, value=5),
            InsertLayers((2,), Layer(9, (HeadGroup(4, 4, 5),))),
        ),
    ),
    "layers by their old numbers": (
        stack(LOW, LOW),
        stack(FRESH, LOW, FRESH, Layer(5, LOW.groups)),
        (GrowMlp(5, (1,)), InsertLayers((0, 1), FRESH)),
    ),
    "some layers": (
        stack(LOW, LOW, LOW),
        stack(Layer(5, LOW.groups), LOW, Layer(5, LOW.groups)),
        (GrowMlp(5, (0, 2)),),
    ),
    "layers to different sizes": (
        stack(LOW, LOW, LOW),
        stack(Layer(7, LOW.groups), Layer(5, LOW.groups), Layer(7, LOW.groups)),
        (GrowMlp(5, (1,)), GrowMlp(7, (0, 2))),
    ),
    "some heads": (
        one_layer((2, 3), (2, 3), (2, 3)),
        one_layer((2, 3), (6, 3), (6, 5)),
        (GrowKeys(6, heads=(1, 2)), GrowValues(5, heads=(2,))),
    ),
    "heads to different sizes": (
        one_layer((2, 3), (2, 3), (2, 3)),
        one_layer((6, 3), (4, 3), (6, 3)),
        (GrowKeys(4, heads=(1,)), GrowKeys(6, heads=(0, 2))),
    ),
    "added heads of two kinds": (
        one_layer((2, 3)),
        one_layer((2, 3), (4, 5), (4, 5), (1, 1)),
        (AddHeads(3, key=4, value=5), AddHeads(4, key=1, value=1)),
    ),
    "levelling": (stack(LOW, MIDDLE), stack(Layer(6, LOW.groups), MIDDLE), (GrowMlp(6, (0,)),)),
    "a smaller layer below": (stack(LOW), stack(FRESH, LOW), (InsertLayers((0,), FRESH),)),
    "layers around": (
        stack(LOW),
        stack(FRESH, LOW, FRESH),
        (InsertLayers((0, 1), FRESH),),
    ),
    "layers of two kinds": (
        stack(MIDDLE, HIGH),
        stack(FRESH, MIDDLE, LOW, HIGH, FRESH),
        (InsertLayers((0, 2), FRESH), InsertLayers((2,), LOW)),
    ),
}


@pytest.mark.parametrize("case", READABLE)
def test_the_difference_reads_as_one_would_write_it(case: str) -> None:
    old, new, expected = READABLE[case]
    assert diff(old, new) == expected
    assert expand(old, expected)[0] == new


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (stack(LOW, LOW, LOW), stack(LOW, LOW), "the number of layers cannot shrink from 3 to 2"),
        (stack(LOW, LOW), stack(HIGH), "the number of layers cannot shrink from 2 to 1"),
        (stack(HIGH, LOW), stack(FRESH), "the number of layers cannot shrink from 2 to 1"),
    ],
    ids=["the rest equal", "the rest larger", "the rest smaller"],
)
def test_fewer_layers_are_counted_before_any_is_looked_at(old: Shape, new: Shape, message: str) -> None:
    with refuses(message):
        diff(old, new)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (Layer.of_heads(3, [(2, 3), (2, 3)]), "MLP width would shrink from 4 to 3"),
        (Layer.of_heads(4, [(2, 3)]), "heads would drop from 2 to 1"),
        (Layer.of_heads(4, [(2, 3), (1, 3)]), "key size of head 1 would shrink from 2 to 1"),
        (Layer.of_heads(4, [(2, 2), (2, 3)]), "value size of head 0 would shrink from 3 to 2"),
        (Layer.of_heads(9, [(9, 9), (9, 2), (9, 9)]), "value size of head 1 would shrink from 3 to 2"),
    ],
    ids=["mlp", "heads", "key", "value", "value, others larger"],
)
def test_a_layer_that_cannot_grow_says_which_size_is_in_the_way(layer: Layer, why: str) -> None:
    old = one_layer((2, 3), (2, 3))
    with refuses(f"layer 0 has nothing to grow into: not layer 0: {why}"):
        diff(old, stack(layer))


def test_every_candidate_for_a_layer_is_given_with_its_reason() -> None:
    narrow = Layer(5, MIDDLE.groups)
    with refuses(
        "layer 1 has nothing to grow into: layer 0 takes layer 0; "
        "not layer 1: MLP width would shrink from 6 to 5; not layer 2: heads would drop from 2 to 1"
    ):
        diff(stack(LOW, MIDDLE), stack(LOW, narrow, Layer(6, (HeadGroup(1, 9, 9),))))


def of_widths(*widths: int) -> Shape:
    return stack(*(Layer(width, LOW.groups) for width in widths))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            of_widths(4, 2),
            of_widths(2, 4),
            "layer 1 has nothing to grow into: layer 0 takes layer 1",
        ),
        (
            of_widths(2, 4, 3),
            of_widths(3, 2, 4),
            "layer 2 has nothing to grow into: layer 0 takes layer 0; layer 1 takes layer 2",
        ),
        (
            of_widths(4, 3),
            of_widths(3, 4, 2),
            "layer 1 has nothing to grow into: layer 0 takes layer 1; "
            "not layer 2: MLP width would shrink from 3 to 2",
        ),
    ],
    ids=["two swapped", "three turned round", "a smaller one left"],
)
def test_layers_that_are_taken_are_named_with_those_that_take_them(
    old: Shape, new: Shape, message: str
) -> None:
    with refuses(message):
        diff(old, new)


@pytest.mark.parametrize("other", [None, 5, "SHAPE", LOW, (SHAPE,)], ids=repr)
def test_the_difference_to_what_is_no_shape_is_refused(other: Any) -> None:
    with refuses(f"{other!r} is not a Shape"):
        diff(SHAPE, other)
    with refuses(f"{other!r} is not a Shape"):
        diff(other, SHAPE)


# The difference if one knows which layer is which


@given(growths())
@examples(150)
def test_given_the_places_of_the_old_layers_their_lineage_is_kept(
    growth: tuple[Shape, list[Expansion]],
) -> None:
    old, sequence = growth
    new, lineage = expand(old, sequence)
    places = [lineage.index(layer) for layer in range(len(old.layers))]
    assert expand(old, between(old, new, places)) == (new, lineage)


@given(growths())
@examples(60)
def test_layers_are_inserted_last_and_growth_of_all_layers_names_none(
    growth: tuple[Shape, list[Expansion]],
) -> None:
    old, sequence = growth
    new, lineage = expand(old, sequence)
    found = between(old, new, [lineage.index(layer) for layer in range(len(old.layers))])
    order = [GrowHidden, GrowMlp, GrowKeys, GrowValues, AddHeads, InsertLayers]
    kinds = [order.index(type(expansion)) for expansion in found]
    assert kinds == sorted(kinds)
    for expansion in found:
        if not isinstance(expansion, GrowHidden | InsertLayers):
            assert expansion.layers != tuple(range(len(old.layers)))
