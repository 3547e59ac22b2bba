"""Short names of schedules that say what they grow: ``x2 width at 5%, x2 all at 55%``."""

from __future__ import annotations

from itertools import count
from statistics import fmean

from nasgrow.expansions import Lineage, expand, kind_of
from nasgrow.schedule import Event, Schedule
from nasgrow.shape import Shape

WIDTH_DIMENSIONS = ("hidden", "mlp", "heads")
"""Dimensions that are called ``width`` if they grow by the same factor, and ``all`` if layers do too."""

NAMED_EVENTS = 4
"""The most events that a name lists; it only counts further ones."""


def short_name(schedule: Schedule) -> str:
    """Name a schedule by what it grows, by which factor and at which percentage of the budget.

    Events after the first :data:`NAMED_EVENTS` are only counted. A schedule without events is named
    by its shape.
    """
    if not schedule.events:
        return shape_name(schedule.start)
    named = [
        f"{_grown(shape, event)} at {100 * event.at:.3g}%"
        for shape, event in zip(schedule.shapes, schedule.events, strict=False)
    ]
    more = len(named) - NAMED_EVENTS
    if more > 0:
        named[NAMED_EVENTS:] = [f"{more} more event{'s' if more > 1 else ''}"]
    return ", ".join(named)


def shape_name(shape: Shape) -> str:
    """Name a shape by hidden size, number of layers, MLP width and number of heads.

    Head sizes are left out. If layers differ, the name is the whole shape as text.
    """
    first = shape.layers[0]
    if any(layer != first for layer in shape.layers):
        return str(shape)
    return f"h={shape.hidden}, N={len(shape.layers)}, p={first.mlp}, E={first.head_count}"


def _grown(shape: Shape, event: Event) -> str:
    """Say what an event grows, such as ``x2 width plus x3 layers``.

    If the event names an operator, `` by OPERATOR`` follows.
    """
    factors: dict[str, list[str]] = {}
    for name, factor in _factors(shape, event).items():
        factors.setdefault(_times(factor), []).append(name)
    grown = " plus ".join(f"{factor} {_together(names)}" for factor, names in factors.items())
    return grown if event.operator is None else f"{grown} by {event.operator}"


def _times(factor: float) -> str:
    """Write a factor above 1 with two significant digits, or more if that would give ``x1``.

    From 10 on it is a whole number.
    """
    if factor >= 10:
        return f"x{factor:.0f}"
    return next(text for digits in count(2) if (text := f"x{factor:.{digits}g}") != "x1")


def _together(names: list[str]) -> str:
    """List dimensions that grow by the same factor; ``width`` or ``all`` where that applies."""
    if all(name in names for name in WIDTH_DIMENSIONS):
        rest = [name for name in names if name not in WIDTH_DIMENSIONS]
        names = ["all", *rest[1:]] if rest[:1] == ["layers"] else ["width", *rest]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _factors(shape: Shape, event: Event) -> dict[str, float]:
    """Return the factor by which an event grows each dimension.

    For the sizes within layers it is the factor of their means over the layers that existed before. A
    dimension that grows in new layers alone has none.
    """
    grown, lineage = expand(shape, event.expansions)
    before, after = _sizes(shape, tuple(range(len(shape.layers)))), _sizes(grown, lineage)
    kinds = {kind_of(expansion) for expansion in event.expansions}
    return {
        name: after[name] / before[name] for name in before if name in kinds and after[name] > before[name]
    }


def _sizes(shape: Shape, lineage: Lineage) -> dict[str, float]:
    """Return the six sizes of a shape; those within layers are means over the layers that are not new."""
    old = [layer for layer, origin in zip(shape.layers, lineage, strict=True) if origin is not None]
    heads = [head for layer in old for head in layer.heads]
    return {
        "layers": len(shape.layers),
        "hidden": shape.hidden,
        "mlp": fmean(layer.mlp for layer in old),
        "heads": fmean(layer.head_count for layer in old),
        "key": fmean(key for key, _ in heads),
        "value": fmean(value for _, value in heads),
    }
