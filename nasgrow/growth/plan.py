"""Where every value of a grown model comes from: copied, zero, or free.

The plan is computed from shapes and the parameter table alone. A grown tensor is cut into boxes: those that
hold old values (times a factor), those that must be zero, and those that are free. Growing weights,
gradients and optimizer state is the same walk over the same boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nasgrow.expansions import Lineage
from nasgrow.params import Entry, table
from nasgrow.shape import Shape, Variant

Box = tuple[tuple[int, int], ...]
"""A part of a tensor: start and stop along each axis of the table."""


@dataclass(frozen=True)
class Copy:
    """Old values: the box ``take`` of the old tensor ``source``, times ``factor``, goes to box ``put``."""

    source: Entry
    take: Box
    put: Box
    factor: float


@dataclass(frozen=True)
class TensorPlan:
    """How one tensor of the grown model is filled; the boxes are disjoint and cover it.

    ``pattern`` is an old tensor of the same kind, the nearest one, from which a tensor without old values
    takes its dtype, device and parameter group.
    """

    entry: Entry
    pattern: Entry
    copies: tuple[Copy, ...]
    zeros: tuple[Box, ...]
    free: tuple[Box, ...]

    @property
    def new(self) -> tuple[Box, ...]:
        """The boxes that hold no old values."""
        return self.zeros + self.free

    @property
    def unchanged(self) -> bool:
        """Whether the tensor is the old one as it was."""
        return self.copies == (Copy(self.pattern, _whole(self.pattern), _whole(self.entry), 1.0),)


def plan_growth(old: Shape, new: Shape, lineage: Lineage, variant: Variant) -> dict[str, TensorPlan]:
    """Plan every tensor of the grown model, by name."""
    sources: dict[tuple[str, int | None], list[Entry]] = {}
    for source in table(old, variant).values():
        sources.setdefault((source.role, source.layer), []).append(source)
    plans = {}
    for name, entry in table(new, variant).items():
        origin = None if entry.layer is None else lineage[entry.layer]
        if entry.layer is not None and origin is None:
            pattern = sources[entry.role, _nearest(lineage, entry.layer)][-1]
            whole = (_whole(entry),)
            closed = entry.closed(variant)
            plans[name] = TensorPlan(entry, pattern, (), whole if closed else (), () if closed else whole)
        else:
            related = sources[entry.role, origin]
            copies = tuple(copy for source in related if (copy := _copy(source, entry)) is not None)
            pattern = copies[0].source if copies else related[-1]
            plans[name] = TensorPlan(entry, pattern, copies, *_new_boxes(entry, copies))
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


def index(box: Box) -> tuple[slice, ...]:
    """The box as an index into a tensor with the table's axes."""
    return tuple(slice(start, stop) for start, stop in box)


def _whole(entry: Entry) -> Box:
    return tuple((0, size) for size in entry.sizes)


def _copy(source: Entry, entry: Entry) -> Copy | None:
    """What ``entry`` takes from ``source``: all of it, but for the heads that it does not cover."""
    take = list(_whole(source))
    put = list(take)
    if source.heads is not None and entry.heads is not None:
        start = max(source.heads.start, entry.heads.start)
        stop = min(source.heads.stop, entry.heads.stop)
        if start >= stop:
            return None
        by_head = entry.axes.index("E")
        take[by_head] = (start - source.heads.start, stop - source.heads.start)
        put[by_head] = (start - entry.heads.start, stop - entry.heads.start)
    factor = 1.0
    for axis, power in entry.row.power.items():
        index = entry.axes.index(axis)
        factor *= (entry.sizes[index] / source.sizes[index]) ** power
    return Copy(source, tuple(take), tuple(put), factor)


def _new_boxes(entry: Entry, copies: tuple[Copy, ...]) -> tuple[tuple[Box, ...], tuple[Box, ...]]:
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
    for copy in copies:
        region = whole
        if entry.heads is not None:
            by_head = entry.axes.index("E")
            region = (*whole[:by_head], copy.put[by_head], *whole[by_head + 1 :])
        for axis, slab in slabs(region, copy.put, order):
            (zeros if marked[axis] else free).append(slab)
        uncovered = [piece for box in uncovered for _, piece in slabs(box, region, range(len(whole)))]
    (zeros if "E" in entry.row.zero else free).extend(uncovered)
    return tuple(zeros), tuple(free)
