"""Levels: the shares of a final shape's sizes that exist at a time, and the schedules that raise them.

A level gives a share of each size of the final shape. The size at a level is that share of the final size,
rounded to a multiple that suits devices, and at least one such multiple. The existing layers are the first
ones in an order over the final layers, and the existing heads are the first ones of their layer. So levels
that only rise give shapes that only grow, and a schedule that raises every share to 1 ends at the final
shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm
from typing import Literal, NamedTuple, get_args

from nasgrow.expansions import between
from nasgrow.schedule import Event, Schedule
from nasgrow.shape import Layer, Shape, Variant

Dim = Literal["hidden", "layers", "mlp", "heads", "key", "value"]
DIMS: tuple[Dim, ...] = get_args(Dim)
Order = Literal["top", "bottom", "middle", "interleave"]
ORDERS: tuple[Order, ...] = get_args(Order)

CACHED_ORDERS = 10_000
"""The most layers, and the most orders of layers, that a process caches."""

LARGE = 512
"""Final sizes from this one on are rounded to multiples of up to 64, smaller ones of up to 8."""


class Rounding(NamedTuple):
    """The multiples that sizes below the final one are rounded to; None chooses by the final size."""

    hidden: int | None = None
    mlp: int | None = None
    key: int | None = None
    value: int | None = None

    def of(self, dim: Dim, whole: int) -> int:
        """Return the multiple for a dimension whose final size is ``whole``; 1 for layers and heads.

        If none is declared, it is the largest power of two that divides the final size and is at
        most a quarter of it, up to 64 for final sizes from :data:`LARGE` on and up to 8 for others.
        """
        if dim in ("layers", "heads"):
            return 1
        declared: int | None = getattr(self, dim)
        if declared is not None:
            return declared
        powers = (64, 32, 16, 8, 4, 2) if whole >= LARGE else (8, 4, 2)
        return next((power for power in powers if whole % power == 0 and 4 * power <= whole), 1)


class Within(NamedTuple):
    """The shares of the sizes within one final layer."""

    mlp: float = 1.0
    heads: float = 1.0
    key: float = 1.0
    value: float = 1.0


@dataclass(frozen=True)
class Level:
    """The shares of a final shape's sizes.

    ``within`` has the shares of every final layer, including layers that do not exist at this level.
    """

    hidden: float
    layers: float
    within: tuple[Within, ...]

    @staticmethod
    def of(shares: Mapping[Dim, float], count: int) -> Level:
        """Return the level with the same shares in each of ``count`` layers; 1 for dimensions not named."""
        same = Within(**{name: share for name, share in shares.items() if name in Within._fields})
        return Level(shares.get("hidden", 1.0), shares.get("layers", 1.0), (same,) * count)

    def times(self, dims: Iterable[Dim], factor: float, layers: range) -> Level:
        """Return the level with the shares of some dimensions multiplied, up to 1.

        Args:
            dims: The dimensions.
            factor: The factor.
            layers: The final layers whose inner shares (MLP, heads, key, value) are multiplied. The
                shares of the hidden size and of the number of layers do not depend on it.
        """

        def raised(of: Level | Within, names: Iterable[str]) -> dict[str, float]:
            return {name: min(1.0, getattr(of, name) * factor) for name in dims if name in names}

        within = tuple(
            layer._replace(**raised(layer, Within._fields)) if index in layers else layer
            for index, layer in enumerate(self.within)
        )
        return replace(self, **raised(self, ("hidden", "layers")), within=within)


@lru_cache(CACHED_ORDERS)
def ordered(order: Order, count: int) -> Sequence[int]:
    """Return the indices of the final layers in the order in which they are added.

    Args:
        order: Where new layers are inserted.
        count: The number of final layers.
    """
    if order == "top":
        return range(count)
    if order == "bottom":
        return range(count)[::-1]
    if order == "middle":
        return tuple(index // 2 if index % 2 == 0 else count - 1 - index // 2 for index in range(count))
    # Van der Corput's sequence 0, 1/2, 1/4, 3/4, 1/8, ... times count, without repeated layers.
    bits = count.bit_length()
    reverse = (int(f"{index:0{bits}b}"[::-1], 2) for index in range(2**bits))
    return tuple(dict.fromkeys(number * count >> bits for number in reverse))


def shape_at(
    final: Shape, level: Level, order: Order, variant: Variant, rounding: Rounding
) -> tuple[Shape, tuple[int, ...]]:
    """Return the shape at a level, and the indices of the final layers that it has, ascending."""
    count = size_at("layers", level.layers, len(final.layers), variant, rounding)
    present = sorted(ordered(order, len(final.layers))[:count])
    layers = tuple(
        [_layer_at(final.layers[index], level.within[index], variant, rounding) for index in present]
    )
    hidden = size_at("hidden", level.hidden, final.hidden, variant, rounding)
    return Shape(hidden, layers), tuple(present)


@lru_cache(CACHED_ORDERS)
def _layer_at(whole: Layer, share: Within, variant: Variant, rounding: Rounding) -> Layer:
    """Return a layer of the final shape with its sizes reduced to these shares.

    Results are cached, because most layers of all points are equal.
    """
    heads = whole.heads[: size_at("heads", share.heads, whole.head_count, variant, rounding)]
    sizes = [
        (
            size_at("key", share.key, key, variant, rounding),
            size_at("value", share.value, value, variant, rounding),
        )
        for key, value in heads
    ]
    return Layer.of_heads(size_at("mlp", share.mlp, whole.mlp, variant, rounding), sizes)


def rising(
    final: Shape,
    start: Level,
    later: Iterable[tuple[float, Level]],
    order: Order,
    variant: Variant,
    rounding: Rounding,
) -> Schedule:
    """Return the schedule that reaches each level at its time.

    Of several levels at the same time the last one counts. A level that changes no size gives no
    event, so that points with the same effect give equal schedules. The caller ensures that times
    lie between 0 and 1 and that shares do not fall: neither is checked.
    """
    shape, present = shape_at(final, start, order, variant, rounding)
    shapes, events = [shape], []
    for at, level in sorted(dict(later).items(), key=lambda item: item[0]):
        grown, more = shape_at(final, level, order, variant, rounding)
        if grown != shape:
            events.append(Event(at, between(shape, grown, [more.index(layer) for layer in present])))
            shapes.append(grown)
            shape, present = grown, more
    return Schedule.through(shapes, events)


def size_at(dim: Dim, share: float, whole: int, variant: Variant, rounding: Rounding) -> int:
    """Return the size of a dimension at a share of its final size ``whole``.

    The size is rounded to the nearest multiple of ``rounding``'s unit. It is at least one unit and
    at most the final size, which a share of 1 gives exactly. With RoPE the unit of keys is even,
    because RoPE rotates pairs.
    """
    if share >= 1:
        return whole
    unit = rounding.of(dim, whole)
    if dim == "key" and variant.positions == "rope":
        unit = lcm(2, unit)
    return min(whole, unit * max(1, round(share * whole / unit)))
