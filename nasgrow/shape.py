"""Shapes and variants: what size a model is, and what kind.

A *shape* holds the sizes that expansions enlarge; a *variant* holds the choices that stay fixed for a
model's whole life. Both are frozen and hashable, and neither needs torch. No size is derived from another:
``hidden`` need not be a multiple of anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from sys import float_info
from typing import Literal, TypeVar, get_args

Activation = Literal["relu", "gelu", "silu"]
Positions = Literal["learned", "rope", "none"]
NormPlacement = Literal["before", "after"]
Part = TypeVar("Part")

LARGEST = 10**9
"""No size is larger: what is, was mistyped."""


def positive(value: object, what: str, most: int = LARGEST) -> int:
    """Return ``value`` if it is an integer from 1 to ``most``, else raise a ``ValueError`` that quotes it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} must be a positive integer, not {value!r}")
    if value > most:
        raise ValueError(f"{what} must be at most {most}, not {value}")
    return value


def _all_of(kind: type[Part], given: object, what: str) -> tuple[Part, ...]:
    """The given parts as a tuple, at least one and all of one kind."""
    parts = tuple(given) if isinstance(given, Iterable) else (given,)
    if not isinstance(given, Iterable) or not parts or not all(isinstance(part, kind) for part in parts):
        wrong = given if not isinstance(given, Iterable) else parts
        raise ValueError(f"{what} needs a tuple of at least one {kind.__name__}, not {wrong!r}")
    return parts


@dataclass(frozen=True)
class HeadGroup:
    """A run of ``count`` equal heads: key size ``key`` (k) and value size ``value`` (v).

    A head is one key and one value projection with the query projections that read them: one in the paper,
    :attr:`Variant.queries` of them under grouped-query attention.
    """

    count: int
    key: int
    value: int

    def __post_init__(self) -> None:
        positive(self.count, "head count")
        positive(self.key, "key size")
        positive(self.value, "value size")


@dataclass(frozen=True)
class Layer:
    """One transformer layer: MLP width ``mlp`` (p) and its heads, in order.

    ``groups`` is the run-length encoding of the heads, and is normalised on construction: neighbouring
    groups of equal sizes are merged, so layers with the same heads compare equal however they were written.
    """

    mlp: int
    groups: tuple[HeadGroup, ...]

    def __post_init__(self) -> None:
        positive(self.mlp, "MLP width")
        groups = _all_of(HeadGroup, self.groups, "a layer")
        runs = [list(run) for _, run in groupby(groups, key=lambda group: (group.key, group.value))]
        merged = (HeadGroup(sum(g.count for g in run), run[0].key, run[0].value) for run in runs)
        object.__setattr__(self, "groups", tuple(merged))

    @cached_property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """The ``(key, value)`` sizes of each head, in order: the groups written out."""
        return tuple((g.key, g.value) for g in self.groups for _ in range(g.count))

    @property
    def head_count(self) -> int:
        """The number of heads (E)."""
        return sum(group.count for group in self.groups)

    @staticmethod
    def of_heads(mlp: int, heads: Iterable[tuple[int, int]]) -> Layer:
        """Build a layer from the ``(key, value)`` sizes of each head."""
        return Layer(mlp, tuple(HeadGroup(1, key, value) for key, value in heads))

    @property
    def spans(self) -> Iterator[tuple[range, HeadGroup]]:
        """Each group with the range of head indices it covers."""
        start = 0
        for group in self.groups:
            yield range(start, start + group.count), group
            start += group.count

    def __str__(self) -> str:
        heads = " + ".join(f"{g.count}×(k={g.key}, v={g.value})" for g in self.groups)
        return f"p={self.mlp}, heads {heads}"


@dataclass(frozen=True)
class Shape:
    """The sizes of a model: hidden size (h), context, vocabulary, and its layers in order."""

    hidden: int
    context: int
    vocab: int
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        positive(self.hidden, "hidden size")
        positive(self.context, "context")
        positive(self.vocab, "vocabulary")
        object.__setattr__(self, "layers", _all_of(Layer, self.layers, "a shape"))

    @staticmethod
    def uniform(
        *, hidden: int, layers: int, mlp: int, heads: int, key: int, value: int, context: int, vocab: int
    ) -> Shape:
        """A shape of ``layers`` equal layers, each with ``heads`` equal heads."""
        layer = Layer(mlp, (HeadGroup(heads, key, value),))
        return Shape(hidden, context, vocab, (layer,) * positive(layers, "number of layers"))

    def with_layers(self, layers: Iterable[Layer]) -> Shape:
        """The same shape with other layers."""
        return replace(self, layers=tuple(layers))

    def __str__(self) -> str:
        runs = [(str(layer), len(list(run))) for layer, run in groupby(self.layers)]
        layers = "; ".join(f"{count}×[{text}]" for text, count in runs)
        return f"h={self.hidden}, N={len(self.layers)}: {layers}"


def _one_of(value: object, allowed: object, what: str) -> None:
    options = get_args(allowed)
    if value not in options:
        raise ValueError(f"{what} must be one of {', '.join(options)}, not {value!r}")


@dataclass(frozen=True)
class Variant:
    """The kind of transformer; the defaults are the architecture of Gesmundo & Maile (2023), made causal.

    Attributes:
        activation: The MLP's non-linearity.
        gated: The MLP is ``activation(x gate) * (x up + up_bias)`` before its down projection.
        causal: Position i attends to positions up to i; otherwise to all.
        positions: ``learned`` vectors, ``rope`` rotations of queries and keys, or ``none``.
        final_norm: Normalise once more before the output projection.
        tied: The output projection is the token embedding, transposed.
        queries: Query projections that share one head's key and value (grouped-query attention above 1).
        norm: Normalise a block's input (``before``) or its output (``after``).
        epsilon: Added to the *sum* of squares in RMSNorm. The usual epsilon, added to the mean, is
            ``epsilon / h``: stated this way it needs no rescaling when h grows.
        rope_base: RoPE's lowest frequency is just above ``1 / rope_base``.
    """

    activation: Activation = "relu"
    gated: bool = False
    causal: bool = True
    positions: Positions = "learned"
    final_norm: bool = False
    tied: bool = False
    queries: int = 1
    norm: NormPlacement = "before"
    epsilon: float = 1e-4
    rope_base: float = 10_000.0

    def __post_init__(self) -> None:
        _one_of(self.activation, Activation, "activation")
        _one_of(self.positions, Positions, "positions")
        _one_of(self.norm, NormPlacement, "norm")
        for name in ("gated", "causal", "final_norm", "tied"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, not {getattr(self, name)!r}")
        positive(self.queries, "queries per head")
        for name, least in (("epsilon", 0), ("rope_base", 1)):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not least < value <= float_info.max
            ):
                raise ValueError(f"{name} must be a finite number above {least}, not {value!r}")

    def check(self, shape: Shape) -> None:
        """Raise ``ValueError`` if a model of this variant cannot have ``shape``."""
        if self.positions != "rope":
            return
        for index, layer in enumerate(shape.layers):
            for group in layer.groups:
                if group.key % 2:
                    raise ValueError(
                        f"layer {index}: RoPE rotates pairs, so key sizes must be even, not {group.key}"
                    )
