"""Where every value of a grown model comes from: copied, zero, or free.

The plan is computed from shapes and the parameter table alone. A grown tensor is cut into boxes: those that
hold old values (times a factor), those that must be zero, and those that are free. Growing weights,
gradients and optimizer state is the same walk over the same boxes.

Units (of the hidden size, an MLP, a head, ...) may be copied several times. Then each copy has a *share* of
the old unit, and shares add up to 1. What writes a unit has the factor w in its copies, what reads it
share / w, so that the copies together pass on w (share / w) x, summed: x. By the chain rule the gradient that
reaches a copy is its share of the old one, divided by the factor of its values.
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
    """One axis of the model that growth may enlarge: the units that several tensors share.

    Attributes:
        name: ``h``, ``p``, ``E``, ``k`` or ``v``, as in the table.
        old: Its size before. (Of ``E``, the heads of the layer in all its groups.)
        new: Its size after.
        layer: The grown model's layer it belongs to; None for ``h``.
        origin: The old layer whose values that layer takes.
    """

    name: str
    old: int
    new: int
    layer: int | None = None
    origin: int | None = None


class Piece(NamedTuple):
    """Neighbouring units that come from neighbouring old ones.

    Attributes:
        start: The first old unit.
        stop: The one after the last.
        put: Where the first goes.
        share: The share of the old units that this copy has.
        write: The factor of the tensors that write these units; those that read them have share / write.
    """

    start: int
    stop: int
    put: int
    share: float = 1.0
    write: float = 1.0

    @property
    def again(self) -> bool:
        """Whether it is a further copy: old units keep their places."""
        return self.put != self.start


Units = Callable[[Axis], Sequence[Piece]]
"""Where the units of an axis come from.

The pieces cover the first units without gaps; those they do not cover are new. Old units keep their places,
and all copies of an old unit are cut alike.
"""


def kept(axis: Axis) -> Sequence[Piece]:
    """Old units stay, and all others are new."""
    return (Piece(0, axis.old, 0),)


def equal(number: int, copies: int) -> float:
    """The share of each copy of a unit, if all are alike."""
    return 1 / copies


def uneven(number: int, copies: int) -> float:
    """The share of copy ``number`` of a unit, if no two are alike: proportional to copies, ..., 2, 1."""
    return 2 * (copies - number) / (copies * (copies + 1))


def in_turn(
    axis: Axis,
    write: Callable[[float], float] = lambda share: 1.0,
    share: Callable[[int, int], float] = equal,
) -> list[Piece]:
    """Old units are copied in turn until the axis is full.

    Copy i of m has the share ``share(i, m)``, and the factor ``write`` of that.
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
    """One piece for each head of a layer, given the old head that it comes from."""
    return [
        Piece(origin, origin + 1, put, share(origins[:put].count(origin), origins.count(origin)))
        for put, origin in enumerate(origins)
    ]


@dataclass(frozen=True)
class Copy:
    """Old values: the box ``take`` of the old tensor ``source``, times ``factor``, goes to box ``put``.

    ``share`` is the share of the old units that this copy has, and ``again`` tells further copies from those
    that are old values in their place.
    """

    source: TensorSpec
    take: Box
    put: Box
    factor: float
    share: float = 1.0
    again: bool = False

    def scale(self, power: int) -> float:
        """The factor of values that are measured in a power of the gradient; -1 is that of weights."""
        return self.factor**-power * self.share ** max(0, power)

    def moved(self, box: Box) -> Box | None:
        """Where the copy puts a box of the source, as far as it takes it."""
        shift = [put[0] - take[0] for take, put in zip(self.take, self.put, strict=True)]
        moved = tuple((start + by, stop + by) for (start, stop), by in zip(box, shift, strict=True))
        return overlap(moved, self.put)


@dataclass(frozen=True)
class TensorPlan:
    """How one tensor of the grown model is filled; the boxes are disjoint and cover it.

    ``pattern`` is an old tensor of the same kind, the nearest one, from which a tensor without old values
    takes its dtype, device and parameter group.
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
        """The boxes that were not there before: new ones and further copies."""
        return self.new + tuple(copy.put for copy in self.copies if copy.again)

    @property
    def unchanged(self) -> bool:
        """Whether the tensor is the old one as it was."""
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
    """Plan every tensor of the grown model, by name.

    Args:
        old: The shape before.
        new: The shape after.
        lineage: Which old layer each layer is.
        variant: The kind of transformer.
        units: Where units come from; by default all but the old ones are new.
        copied: For layers that are new by ``lineage``, the old layer that each is a copy of, if any.
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
    """The old layer nearest to a new one: the one below it, or above it at the bottom."""
    below = [origin for origin in lineage[:layer] if origin is not None]
    above = [origin for origin in lineage[layer:] if origin is not None]
    return below[-1] if below else above[0]


def slabs(whole: Box, inner: Box, axes: Iterable[int]) -> Iterator[tuple[int, Box]]:
    """Cut what ``inner`` leaves of ``whole`` into disjoint boxes, at most two for each axis.

    The cuts follow the order of ``axes``: a box that comes with axis a lies within ``inner`` along the axes
    before a, and outside of it along a.
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
    """Disjoint boxes that cover what the boxes ``holes`` leave of ``whole``."""
    left = [whole]
    for hole in holes:
        left = [piece for box in left for _, piece in slabs(box, hole, range(len(whole)))]
    return left


def overlap(a: Box, b: Box) -> Box | None:
    """The box that two boxes share, if any."""
    shared = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))
    return shared if all(start < stop for start, stop in shared) else None


def _whole(entry: TensorSpec) -> Box:
    return tuple((0, size) for size in entry.sizes)


class _Segment(NamedTuple):
    """A piece as one tensor sees it: where it takes and where it puts, and the factor of its values."""

    take: tuple[int, int]
    put: tuple[int, int]
    factor: float
    share: float
    again: bool


def _pieces(axis: Axis, units: Units) -> Sequence[Piece]:
    """The pieces of an axis, in order; of one that does not grow, all of it."""
    pieces = units(axis) if axis.new > axis.old else kept(axis)
    assert pieces[0].put == 0
    assert all(a.put + a.stop - a.start == b.put for a, b in pairwise(pieces)), pieces
    return pieces


def _head_segments(source: TensorSpec, entry: TensorSpec, heads: Sequence[Piece]) -> list[_Segment | None]:
    """What ``entry`` takes from ``source`` along E, within their groups; [None] for tensors without heads."""
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
    """What ``entry`` takes from ``source`` along each axis."""
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
    """The factor of the values of a tensor along one axis.

    A norm's gain must make up for what the copies add to the norm: the root of the sum of their w².
    """
    if entry.row.diagonal:
        copies = (other for other in pieces if other.start <= piece.start < other.stop)
        return sqrt(sum(copy.write**2 for copy in copies))
    return piece.share / piece.write if axis in entry.row.reads else piece.write


def _copies(
    source: TensorSpec, entry: TensorSpec, segments: list[list[_Segment]], again: bool
) -> Iterator[Copy]:
    """The boxes of ``entry`` that hold values of ``source``."""
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
    """The boxes that no copy fills, as (zeros, free).

    An entry is zero if it lies in the new slice of an axis that the table marks. What is new along k, v or h
    is a matter of the head group that its head comes from; heads that come from none are new along E.
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
