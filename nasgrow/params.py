"""The parameter table: the axes of every tensor, how it grows, and how it is initialised.

This table holds all rules of Gesmundo & Maile (2023) in one place. Growth, initialisation, FLOPs,
parameter counts and weight-decay groups all read it, so they cannot disagree.

Axes: ``vocab``, ``context``, ``h`` hidden, ``p`` MLP width, ``E`` heads of one group, ``q`` queries per
head, ``k`` key size, ``v`` value size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from nasgrow.shape import NormPlacement, Shape, Variant

Box = tuple[tuple[int, int], ...]
"""A part of a tensor: start and stop along each axis of the table."""


def index(box: Box) -> tuple[slice, ...]:
    """Return the box as an index into a tensor that has the axes of the table."""
    return tuple(slice(start, stop) for start, stop in box)


@dataclass(frozen=True)
class ParameterRow:
    """One line of the table: a kind of tensor.

    Attributes:
        dims: The stored dimensions, each a product of axes. Weights are stored as matrices (input, output).
        zero: The axes on which a new slice must be zero to preserve the function.
        power: The exponent for each axis on which old values are multiplied by
            ``(new size / old size) ** power``.
        reads: The axes that are inputs of the tensor; the others are outputs, which it writes. (Key and
            query units multiply each other; the key counts as the reader.)
        diagonal: Whether it scales each unit separately, as a norm's gain does.
        closes: The norm placement with which this tensor is zero in a new layer (inserted, or of a fresh
            model), so that the layer adds nothing. With the norm before the block these are the output
            projections. With the norm after the block it is the norm's gain, because a zero output
            under a norm has a gradient of order ``1 / sqrt(epsilon)``. None: with no placement.
        start: The initial value of a constant tensor, or None for a random one.
        fan_in: For random tensors, the name of the size whose inverse is the variance.
        decays: Whether weight decay applies.
        multiplies: Whether the forward pass multiplies by this tensor once for every token.
    """

    dims: tuple[tuple[str, ...], ...]
    zero: frozenset[str] = frozenset()
    power: Mapping[str, float] = field(default_factory=dict)
    reads: frozenset[str] = frozenset()
    diagonal: bool = False
    closes: NormPlacement | None = None
    start: float | None = None
    fan_in: str = "h"
    decays: bool = True
    multiplies: bool = True


def _of(*axes: str) -> frozenset[str]:
    return frozenset(axes)


_GAIN = ParameterRow((("h",),), power={"h": -0.5}, diagonal=True, start=1.0, decays=False, multiplies=False)
_BLOCK_GAIN = replace(_GAIN, closes="after")

ROWS: dict[str, ParameterRow] = {
    "embedding": ParameterRow((("vocab",), ("h",)), zero=_of("h"), multiplies=False),
    "positions": ParameterRow((("context",), ("h",)), zero=_of("h"), multiplies=False),
    "attention_norm": _BLOCK_GAIN,
    "query": ParameterRow((("h",), ("E", "q", "k")), reads=_of("h")),
    "key": ParameterRow((("h",), ("E", "k")), zero=_of("k"), power={"k": 0.5}, reads=_of("h", "k")),
    "value": ParameterRow((("h",), ("E", "v")), reads=_of("h")),
    "query_bias": ParameterRow((("E", "q", "k"),), start=0.0, decays=False, multiplies=False),
    "key_bias": ParameterRow(
        (("E", "k"),),
        zero=_of("k"),
        power={"k": 0.5},
        reads=_of("k"),
        start=0.0,
        decays=False,
        multiplies=False,
    ),
    "value_bias": ParameterRow((("E", "v"),), start=0.0, decays=False, multiplies=False),
    "query_norm": ParameterRow((("k",),), start=1.0, decays=False, multiplies=False),
    "key_norm": ParameterRow((("k",),), start=1.0, decays=False, multiplies=False),
    "out": ParameterRow(
        (("E", "q", "v"), ("h",)),
        zero=_of("E", "v", "h"),
        reads=_of("E", "v"),
        closes="before",
        fan_in="concat",
    ),
    "mlp_norm": _BLOCK_GAIN,
    "gate": ParameterRow((("h",), ("p",)), reads=_of("h")),
    "up": ParameterRow((("h",), ("p",)), reads=_of("h")),
    "up_bias": ParameterRow((("p",),), start=0.0, decays=False, multiplies=False),
    "down": ParameterRow((("p",), ("h",)), zero=_of("p", "h"), reads=_of("p"), closes="before", fan_in="p"),
    "down_bias": ParameterRow(
        (("h",),), zero=_of("h"), closes="before", start=0.0, decays=False, multiplies=False
    ),
    "final_norm": _GAIN,
    "output": ParameterRow((("h",), ("vocab",)), reads=_of("h")),
}


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of one model: a row of the table with its sizes.

    Attributes:
        name: The parameter's name in the model, such as ``layers.2.heads.0.key``.
        role: The name of its row in the table.
        sizes: The size of each axis, in order.
        fan_in: The size whose inverse is the variance of its random initial values.
        layer: The index of its layer; None if it belongs to none.
        heads: The indices of the heads that it covers; None if it belongs to no head group.
    """

    name: str
    role: str
    sizes: tuple[int, ...]
    fan_in: int
    layer: int | None = None
    heads: range | None = None

    @property
    def row(self) -> ParameterRow:
        """The row of this tensor in the table."""
        return ROWS[self.role]

    def closed(self, variant: Variant) -> bool:
        """Return whether this tensor is zero in a new layer, so that the layer adds nothing at first."""
        return self.row.closes == variant.norm

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes, in the order of ``sizes``."""
        return tuple(axis for dim in self.row.dims for axis in dim)

    @property
    def stored(self) -> tuple[int, ...]:
        """The dimensions of the stored tensor."""
        sizes = iter(self.sizes)
        return tuple(prod(next(sizes) for _ in dim) for dim in self.row.dims)

    @property
    def count(self) -> int:
        """The number of values."""
        return prod(self.sizes)


def table(shape: Shape, variant: Variant) -> dict[str, TensorSpec]:
    """Return every tensor of a model of this shape and variant, by name.

    Raises:
        UserError: A model of this variant cannot have this shape.
    """
    variant.check(shape)
    entries: dict[str, TensorSpec] = {}

    def add(
        role: str, sizes: Mapping[str, int], layer: int | None = None, heads: range | None = None
    ) -> None:
        row = ROWS[role]
        own = tuple(sizes[axis] for dim in row.dims for axis in dim)
        name = prefix + role
        entries[name] = TensorSpec(name, role, own, sizes[row.fan_in], layer, heads)

    prefix = ""
    model = {"vocab": variant.vocab, "context": variant.context, "h": shape.hidden, "q": variant.queries}
    add("embedding", model)
    if variant.positions == "learned":
        add("positions", model)
    for index, layer in enumerate(shape.layers):
        prefix = f"layers.{index}."
        concat = variant.queries * sum(group.count * group.value for group in layer.groups)
        sizes = {**model, "p": layer.mlp, "concat": concat}
        add("attention_norm", sizes, index)
        if variant.qk_norm:
            for role in ("query_norm", "key_norm"):
                add(role, {**sizes, "k": layer.groups[0].key}, index)
        for number, (heads, group) in enumerate(layer.spans):
            prefix = f"layers.{index}.heads.{number}."
            own = {**sizes, "E": group.count, "k": group.key, "v": group.value}
            biases = ("query_bias", "key_bias", "value_bias") if variant.qkv_bias else ()
            for role in ("query", "key", "value", *biases, "out"):
                add(role, own, index, heads)
        prefix = f"layers.{index}."
        add("mlp_norm", sizes, index)
        if variant.gated:
            add("gate", sizes, index)
        for role in ("up", "up_bias", "down", "down_bias") if variant.biases else ("up", "down"):
            add(role, sizes, index)
    prefix = ""
    if variant.final_norm:
        add("final_norm", model)
    if not variant.tied:
        add("output", model)
    return entries
