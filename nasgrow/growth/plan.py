"""Where every value of a grown model comes from: copied, zero, or free.

The plan is computed from shapes and the parameter table alone. A grown tensor is cut into boxes: those that
hold old values (times a factor), those that must be zero, and those that are free. Growing weights,
gradients and optimizer state is the same walk over the same boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product

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
            closed = entry.row.closes == variant.norm
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


def cells(whole: Box, cuts: Iterable[Box]) -> Iterator[Box]:
    """Cut ``whole`` along every face of the boxes ``cuts``; no cell crosses any of them."""
    inner = list(cuts)
    per_axis = []
    for axis, (start, stop) in enumerate(whole):
        marks = {start, stop}
        marks |= {mark for box in inner for mark in box[axis] if start < mark < stop}
        per_axis.append(list(pairwise(sorted(marks))))
    yield from product(*per_axis)


def inside(cell: Box, box: Box) -> bool:
    """Whether ``cell`` lies within ``box``."""
    return all(a <= start and stop <= b for (start, stop), (a, b) in zip(cell, box, strict=True))


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

    A cell is zero if it lies in the new slice of an axis that the table marks. What is new along k, v or h is
    a matter of the head group that the cell's heads come from; heads that come from none are new along E.
    """
    zeros: list[Box] = []
    free: list[Box] = []
    by_head = entry.axes.index("E") if entry.heads is not None else None
    for cell in cells(_whole(entry), (copy.put for copy in copies)):
        if any(inside(cell, copy.put) for copy in copies):
            continue
        grown = {"E"}
        for copy in copies:
            if by_head is None or inside((cell[by_head],), (copy.put[by_head],)):
                faces = zip(entry.axes, cell, copy.put, strict=True)
                grown = {axis for axis, (start, _), (_, stop) in faces if start >= stop}
        (zeros if grown & entry.row.zero else free).append(cell)
    return tuple(zeros), tuple(free)
