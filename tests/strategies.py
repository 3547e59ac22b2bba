"""Random shapes, variants and expansions, shared by the tests."""

from __future__ import annotations

from typing import get_args

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from nasgrow.expansions import (
    AddHeads,
    Expansion,
    GrowHidden,
    GrowKeys,
    GrowMlp,
    GrowValues,
    InsertLayers,
)
from nasgrow.shape import Activation, HeadGroup, Layer, NormPlacement, Positions, Shape, Variant


def examples(count: int) -> settings:
    """Settings for a property: so many examples, and no deadline, for the machine may be busy."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


SIZES = st.integers(1, 6)
EVEN_SIZES = st.sampled_from([2, 4, 6])


def _keys(even_keys: bool) -> st.SearchStrategy[int]:
    return EVEN_SIZES if even_keys else SIZES


def _groups(even_keys: bool) -> st.SearchStrategy[HeadGroup]:
    return st.builds(HeadGroup, count=st.integers(1, 3), key=_keys(even_keys), value=SIZES)


def layers(even_keys: bool = False) -> st.SearchStrategy[Layer]:
    """Layers with heads of unequal sizes; with ``even_keys`` they suit RoPE."""
    groups = st.lists(_groups(even_keys), min_size=1, max_size=3)
    return st.builds(Layer, mlp=st.integers(1, 8), groups=groups.map(tuple))


def shapes(even_keys: bool = False) -> st.SearchStrategy[Shape]:
    """Shapes with unequal layers; with ``even_keys`` they suit RoPE."""
    return st.builds(
        Shape,
        hidden=st.integers(1, 12),
        layers=st.lists(layers(even_keys), min_size=1, max_size=4).map(tuple),
    )


def variants() -> st.SearchStrategy[Variant]:
    """Variants in which every field varies, but those that fix the sizes of keys."""
    return st.builds(
        Variant,
        vocab=st.integers(2, 9),
        context=st.integers(1, 8),
        activation=st.sampled_from(get_args(Activation)),
        gated=st.booleans(),
        causal=st.booleans(),
        positions=st.sampled_from(get_args(Positions)),
        final_norm=st.booleans(),
        tied=st.booleans(),
        queries=st.integers(1, 3),
        norm=st.sampled_from(get_args(NormPlacement)),
        epsilon=st.floats(1e-8, 1e-2),
        rope_base=st.floats(2.0, 1e6),
        biases=st.booleans(),
        qkv_bias=st.booleans(),
    )


@st.composite
def _subsets(draw: st.DrawFn, count: int) -> tuple[int, ...] | None:
    """A choice among ``count`` indices: some of them, or None for all."""
    some = st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True).map(tuple)
    return draw(st.none() | some)


def _members(chosen: tuple[int, ...] | None, count: int) -> tuple[int, ...]:
    return tuple(range(count)) if chosen is None else chosen


def _larger(old: list[int], even: bool = False) -> st.SearchStrategy[int]:
    """Sizes that all of ``old`` can grow to: some may have the size already, but not all."""
    least = max(old) + (min(old) == max(old))
    return st.sampled_from([size for size in range(least, max(old) + 4) if not (even and size % 2)])


@st.composite
def _grow_mlp(draw: st.DrawFn, shape: Shape) -> GrowMlp:
    chosen = draw(_subsets(len(shape.layers)))
    old = [shape.layers[index].mlp for index in _members(chosen, len(shape.layers))]
    return GrowMlp(draw(_larger(old)), chosen)


@st.composite
def _add_heads(draw: st.DrawFn, shape: Shape, even_keys: bool) -> AddHeads:
    chosen = draw(_subsets(len(shape.layers)))
    old = [len(shape.layers[index].heads) for index in _members(chosen, len(shape.layers))]
    key = draw(st.none() | _keys(even_keys))
    value = draw(st.none() | SIZES)
    return AddHeads(draw(_larger(old)), chosen, key=key, value=value)


@st.composite
def _grow_heads(draw: st.DrawFn, shape: Shape, even_keys: bool) -> GrowKeys | GrowValues:
    kinds: list[type[GrowKeys] | type[GrowValues]] = [GrowKeys, GrowValues]
    grow = draw(st.sampled_from(kinds))
    chosen = draw(_subsets(len(shape.layers)))
    concerned = [shape.layers[index].heads for index in _members(chosen, len(shape.layers))]
    heads = draw(_subsets(min(len(of_layer) for of_layer in concerned)))
    old = [of_layer[head][grow.part] for of_layer in concerned for head in _members(heads, len(of_layer))]
    return grow(draw(_larger(old, even=even_keys and grow is GrowKeys)), chosen, heads)


def _insert_layers(shape: Shape, even_keys: bool) -> st.SearchStrategy[InsertLayers]:
    at = st.lists(st.integers(0, len(shape.layers)), min_size=1, max_size=2).map(tuple)
    return st.builds(InsertLayers, at, st.none() | layers(even_keys))


def expansions(shape: Shape, even_keys: bool = False) -> st.SearchStrategy[Expansion]:
    """Any one expansion of ``shape``; with ``even_keys`` even key sizes stay even."""
    return st.one_of(
        _grow_mlp(shape),
        _add_heads(shape, even_keys),
        _grow_heads(shape, even_keys),
        _larger([shape.hidden]).map(GrowHidden),
        _insert_layers(shape, even_keys),
    )


@st.composite
def expansion_sequences(
    draw: st.DrawFn, shape: Shape, max_size: int = 8, even_keys: bool = False
) -> list[Expansion]:
    """Up to ``max_size`` expansions, each of the shape that results from those before it."""
    found: list[Expansion] = []
    for _ in range(draw(st.integers(0, max_size))):
        found.append(draw(expansions(shape, even_keys)))
        shape = found[-1](shape)
    return found
