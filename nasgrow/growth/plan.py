"""Plan where every value of a grown model comes from: a copy of an old value, zero, or a free value.

The plan is computed from the shapes and the parameter table alone. It cuts a grown tensor into boxes:
boxes that hold old values times a factor, boxes that must be zero, and boxes whose values are free (any
value preserves the function, so they are freshly initialised). Weights, gradients and optimizer state
all grow by the same boxes.

A unit is one index of an axis: of the hidden size, an MLP, a head and so on. An operator may copy a unit
several times. Each copy then has a *share* of the old unit, and the shares add up to 1. Tensors that
write the unit (compute it) have the factor w in a copy, and tensors that read it (take it as input) have
share / w. The copies together pass on the sum of w (share / w) x, which is x. By the chain rule, the
gradient of a copied value is its share of the old gradient, divided by the factor of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod, sqrt
from typing import NamedTuple

from nasgrow.expansions import Lineage
from nasgrow.params import Box, TensorSpec, table
from nasgrow.shape import Shape, Variant


class Axis(NamedTuple):
    """One axis of the model that growth may enlarge; several tensors share it.

    Attributes:
        name: ``h``, ``p``, ``E``, ``k`` or ``v``, as in the parameter table.
        old: The size before. (For ``E``, the number of heads in all groups of the layer.)
        new: The size after.
        layer: The layer of the grown model that the axis belongs to; None for ``h``.
        origin: The old layer that this layer takes its values from; None for ``h``.
    """

    name: str
    old: int
    new: int
    layer: int | None = None
    origin: int | None = None


class Piece(NamedTuple):
    """A run of consecutive units of a grown axis that copies a run of consecutive old units.

    Attributes:
        start: The first old unit.
        stop: The old unit after the last.
        put: The new index of the first unit.
        share: The share of the old units that this copy has.
        write: The factor of tensors that write these units. Tensors that read them have share / write.
    """

    start: int
    stop: int
    put: int
    share: float = 1.0
    write: float = 1.0

    @property
    def again(self) -> bool:
        """Whether this is a further copy and not the old units in their old place."""
        return self.put != self.start


Units = Callable[[Axis], Sequence[Piece]]
"""Called with an axis that grows; returns the pieces that fill it with copies of old units.

The pieces cover the first units without gaps, and the units after them are new. The first pieces leave
old units in their places. If two pieces copy one old unit, their ranges of old units are equal.
"""


def kept(axis: Axis) -> Sequence[Piece]:
    """Return one piece: the old units in their places. All further units are new."""
    return (Piece(0, axis.old, 0),)


def equal(number: int, copies: int) -> float:
    """Return the share of copy ``number`` of a unit, from 0, if all copies have the same share."""
    return 1 / copies


def uneven(number: int, copies: int) -> float:
    """Return the share of copy ``number`` of a unit, from 0.

    The shares of a unit's copies are proportional to ``copies``, ..., 2, 1.
    """
    return 2 * (copies - number) / (copies * (copies + 1))


def in_turn(
    axis: Axis,
    write: Callable[[float], float] = lambda share: 1.0,
    share: Callable[[int, int], float] = equal,
) -> list[Piece]:
    """Return pieces that repeat all old units in order until the axis is full.

    Args:
        axis: The axis.
        write: Called with a copy's share; returns the factor of tensors that write the copy, by
            default 1.
        share: Called with the number of a copy, from 0, and the number of copies of its unit;
            returns the copy's share. By default all copies of a unit have equal shares.
    """
    times, rest = divmod(axis.new, axis.old)
    pieces = []
    for number, start in enumerate(range(0, axis.new, axis.old)):
        for low, high, copies in ((0, rest, times + 1), (rest, axis.old, times)):
            if low < high and start + low < axis.new:
                own = share(number, copies)
                pieces.append(Piece(low, high, start + low, own, write(own)))
    return pieces


def of_heads(origins: Sequence[int], share: Callable[[int, int], float] = equal) -> list[Piece]:
    """Return one piece for each head of a grown layer.

    Args:
        origins: For each head, the old head that it copies.
        share: As in :func:`in_turn`.
    """
    return [
        Piece(origin, origin + 1, put, share(origins[:put].count(origin), origins.count(origin)))
        for put, origin in enumerate(origins)
    ]


@dataclass(frozen=True)
class Copy:
    """Old values in a grown tensor: box ``take`` of tensor ``source``, times ``factor``, goes to box ``put``.

    ``share`` is the share of the old units that this copy has. ``again`` is False for old values in
    their old place, and True for further copies of them.
    """

    source: TensorSpec
    take: Box
    put: Box
    factor: float
    share: float = 1.0
    again: bool = False

    def scale(self, power: int) -> float:
        """Return the factor of copied values that are measured in a power of the gradient.

        The powers are 1 for gradients, 2 for their squares, and -1 for weights.
        """
        return self.factor**-power * self.share ** max(0, power)

    def moved(self, box: Box) -> Box | None:
        """Return where the copy puts a box of the source, cut to the part that it takes.

        None if it takes no part of the box.
        """
        shift = [put[0] - take[0] for take, put in zip(self.take, self.put, strict=True)]
        moved = tuple((start + by, stop + by) for (start, stop), by in zip(box, shift, strict=True))
        return overlap(moved, self.put)


@dataclass(frozen=True)
class TensorPlan:
    """How one tensor of the grown model is filled. The boxes are disjoint and cover the tensor.

    Attributes:
        entry: The grown tensor.
        pattern: The old tensor that gives dtype, device and parameter group: the first source, or
            without old values the tensor of the same kind in the nearest old layer.
        copies: The boxes with old values.
        zeros: The boxes that must be zero.
        free: The boxes with free values.
    """

    entry: TensorSpec
    pattern: TensorSpec
    copies: tuple[Copy, ...]
    zeros: tuple[Box, ...]
    free: tuple[Box, ...]

    @property
    def new(self) -> tuple[Box, ...]:
        """The boxes that hold no old values."""
        return self.zeros + self.free

    @property
    def added(self) -> tuple[Box, ...]:
        """The boxes that the tensor did not have before: new values and further copies of old ones."""
        return self.new + tuple(copy.put for copy in self.copies if copy.again)

    @property
    def unchanged(self) -> bool:
        """Whether the tensor is equal to the old one."""
        return self.copies == (Copy(self.pattern, _whole(self.pattern), _whole(self.entry), 1.0),)


def plan_growth(
    old: Shape,
    new: Shape,
    lineage: Lineage,
    variant: Variant,
    *,
    units: Units = kept,
    copied: Sequence[int | None] | None = None,
) -> dict[str, TensorPlan]:
    """Return the plan of every tensor of the grown model, by name.

    Args:
        old: The shape before.
        new: The shape after.
        lineage: For each layer, the old layer that it continues; None for new layers.
        variant: The kind of transformer.
        units: Which units of an axis are copies; by default none, so that all added units are new.
        copied: For each layer, the old layer that it copies, or None if it copies none; it only
            counts for layers that are None in ``lineage``. By default no layer is a copy.
    """
    sources: dict[tuple[str, int | None], list[TensorSpec]] = {}
    for source in table(old, variant).values():
        sources.setdefault((source.role, source.layer), []).append(source)
    plans = {}
    for name, entry in table(new, variant).items():
        own = None if entry.layer is None else lineage[entry.layer]
        origin = copied[entry.layer] if copied and entry.layer is not None and own is None else own
        if entry.layer is not None and origin is None:
            pattern = sources[entry.role, _nearest(lineage, entry.layer)][-1]
            whole = (_whole(entry),)
            closed = entry.closed(variant)
            plans[name] = TensorPlan(entry, pattern, (), whole if closed else (), () if closed else whole)
            continue
        related = sources[entry.role, origin]
        copies: list[Copy] = []
        covered: list[Box] = []
        heads: Sequence[Piece] = ()
        if entry.layer is not None and origin is not None:
            counts = old.layers[origin].head_count, new.layers[entry.layer].head_count
            heads = _pieces(Axis("E", *counts, entry.layer, origin), units)
        for source in related:
            for of_heads in _head_segments(source, entry, heads):
                segments = _segments(source, entry, of_heads, units)
                copies += _copies(source, entry, segments, again=own != origin)
                covered.append(tuple((along[0].put[0], along[-1].put[1]) for along in segments))
        pattern = copies[0].source if copies else related[-1]
        plans[name] = TensorPlan(entry, pattern, tuple(copies), *_new_boxes(entry, covered))
    return plans


def _nearest(lineage: Lineage, layer: int) -> int:
    """Return the old layer nearest to a new one: the next one below, or above if there is none."""
    below = [origin for origin in lineage[:layer] if origin is not None]
    above = [origin for origin in lineage[layer:] if origin is not None]
    return below[-1] if below else above[0]


def slabs(whole: Box, inner: Box, axes: Iterable[int]) -> Iterator[tuple[int, Box]]:
    """Cut the part of ``whole`` outside ``inner`` into disjoint boxes, at most two for each axis.

    Yields each box with the axis of its cut. The cuts follow the order of ``axes``: the box of axis a
    lies within ``inner`` along the axes before a, and outside of it along a.
    """
    rest = list(whole)
    for axis in axes:
        (start, stop), (low, high) = rest[axis], inner[axis]
        for piece in ((start, min(low, stop)), (max(high, start), stop)):
            if piece[0] < piece[1]:
                yield axis, (*rest[:axis], piece, *rest[axis + 1 :])
        rest[axis] = (max(start, low), min(stop, high))
        if rest[axis][0] >= rest[axis][1]:
            return


def without(whole: Box, holes: Iterable[Box]) -> list[Box]:
    """Return disjoint boxes that cover ``whole`` without the boxes ``holes``."""
    left = [whole]
    for hole in holes:
        left = [piece for box in left for _, piece in slabs(box, hole, range(len(whole)))]
    return left


def overlap(a: Box, b: Box) -> Box | None:
    """Return the intersection of two boxes; None if it is empty."""
    shared = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))
    return shared if all(start < stop for start, stop in shared) else None


def _whole(entry: TensorSpec) -> Box:
    return tuple((0, size) for size in entry.sizes)


class _Segment(NamedTuple):
    """A piece on one axis of one tensor: the old range, the new range, and the factor of its values."""

    take: tuple[int, int]
    put: tuple[int, int]
    factor: float
    share: float
    again: bool


def _pieces(axis: Axis, units: Units) -> Sequence[Piece]:
    """Return the pieces of an axis: the ranges of units that copy old units, in order of new index.

    If the axis grows, ``units`` chooses them. Otherwise one piece keeps every unit in its place.
    The pieces start at index 0 and leave no gaps; units after the last piece are new.
    """
    pieces = units(axis) if axis.new > axis.old else kept(axis)
    assert pieces[0].put == 0
    assert all(a.put + a.stop - a.start == b.put for a, b in pairwise(pieces)), pieces
    return pieces


def _head_segments(source: TensorSpec, entry: TensorSpec, heads: Sequence[Piece]) -> list[_Segment | None]:
    """Return the segments along E that ``entry`` copies from ``source``; [None] for tensors without heads.

    Pieces count heads over the whole layer, segments within the head groups of the two tensors.
    """
    if source.heads is None or entry.heads is None:
        return [None]
    found: list[_Segment | None] = []
    for piece in heads:
        by = piece.put - piece.start
        start = max(source.heads.start, piece.start, entry.heads.start - by)
        stop = min(source.heads.stop, piece.stop, entry.heads.stop - by)
        if start < stop:
            take = start - source.heads.start, stop - source.heads.start
            put = start + by - entry.heads.start, stop + by - entry.heads.start
            found.append(_Segment(take, put, _factor(entry, "E", piece, heads), piece.share, piece.again))
    return found


def _segments(
    source: TensorSpec, entry: TensorSpec, heads: _Segment | None, units: Units
) -> list[list[_Segment]]:
    """Return the segments that ``entry`` copies from ``source``, for each axis; ``heads`` is that of E."""
    found = []
    for name, old, new in zip(entry.axes, source.sizes, entry.sizes, strict=True):
        if name == "E":
            assert heads is not None
            found.append([heads])
            continue
        own = (None, None) if name == "h" else (entry.layer, source.layer)
        pieces = _pieces(Axis(name, old, new, *own), units)
        found.append(
            [
                _Segment(
                    (piece.start, piece.stop),
                    (piece.put, piece.put + piece.stop - piece.start),
                    _factor(entry, name, piece, pieces),
                    piece.share,
                    piece.again,
                )
                for piece in pieces
            ]
        )
    return found


def _factor(entry: TensorSpec, axis: str, piece: Piece, pieces: Sequence[Piece]) -> float:
    """Return the factor that a piece contributes to a tensor's values along one axis.

    For a norm's gain it is the root of the sum of w² over all copies of the unit: the gain must make
    up for the squares that the copies add to the norm.
    """
    if entry.row.diagonal:
        copies = (other for other in pieces if other.start <= piece.start < other.stop)
        return sqrt(sum(copy.write**2 for copy in copies))
    return piece.share / piece.write if axis in entry.row.reads else piece.write


def _copies(
    source: TensorSpec, entry: TensorSpec, segments: list[list[_Segment]], again: bool
) -> Iterator[Copy]:
    """Yield the copies from ``source`` to ``entry``: one for each combination of segments of the axes."""
    rescaled = 1.0
    for axis, power in entry.row.power.items():
        index = entry.axes.index(axis)
        rescaled *= (entry.sizes[index] / source.sizes[index]) ** power
    for chosen in product(*segments):
        yield Copy(
            source,
            tuple(segment.take for segment in chosen),
            tuple(segment.put for segment in chosen),
            rescaled * prod(segment.factor for segment in chosen),
            prod(segment.share for segment in chosen),
            again or any(segment.again for segment in chosen),
        )


def _new_boxes(entry: TensorSpec, covered: Sequence[Box]) -> tuple[tuple[Box, ...], tuple[Box, ...]]:
    """Return the boxes that no copy fills, as (zeros, free); copies fill the boxes ``covered``.

    An entry must be zero if it lies in the new slice of an axis in the table's column ``zero``. For
    tensors with heads, the new slices along k, v and h depend on the old head group that a head comes
    from. Heads that come from no old group are new along E.
    """
    zeros: list[Box] = []
    free: list[Box] = []
    marked = [axis in entry.row.zero for axis in entry.axes]
    order = sorted(range(len(marked)), key=lambda axis: not marked[axis])
    whole = _whole(entry)
    uncovered = [whole]
    for inner in covered:
        region = whole
        if entry.heads is not None:
            by_head = entry.axes.index("E")
            region = (*whole[:by_head], inner[by_head], *whole[by_head + 1 :])
        for axis, slab in slabs(region, inner, order):
            (zeros if marked[axis] else free).append(slab)
        uncovered = [piece for box in uncovered for _, piece in slabs(box, region, range(len(whole)))]
    (zeros if "E" in entry.row.zero else free).extend(uncovered)
    return tuple(zeros), tuple(free)
