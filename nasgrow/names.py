"""Short names of schedules, made of what they do: ``x2 width at 5%, x2 all at 55%``."""

from __future__ import annotations

from itertools import count
from statistics import fmean

from nasgrow.expansions import Lineage, expand, kind_of
from nasgrow.schedule import Event, Schedule
from nasgrow.shape import Shape

WIDTH = ("hidden", "mlp", "heads")
"""Dimensions that are ``width`` where they grow by the same factor; with ``layers`` they are ``all``."""

NAMED_EVENTS = 4
"""Events that a name holds; of more, it counts the rest."""


def short_name(schedule: Schedule) -> str:
    """What a schedule grows, by which factor and at which part of the budget; without events, its shape."""
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
    """The sizes of a shape: hidden size, layers, MLP width and heads; all of it if its layers differ."""
    first = shape.layers[0]
    if any(layer != first for layer in shape.layers):
        return str(shape)
    return f"h={shape.hidden}, N={len(shape.layers)}, p={first.mlp}, E={first.head_count}"


def _grown(shape: Shape, event: Event) -> str:
    """What an event grows: dimensions by the same factor together."""
    factors: dict[str, list[str]] = {}
    for name, factor in _factors(shape, event).items():
        factors.setdefault(_times(factor), []).append(name)
    grown = " plus ".join(f"{factor} {_together(names)}" for factor, names in factors.items())
    return grown if event.operator is None else f"{grown} by {event.operator}"


def _times(factor: float) -> str:
    """A factor in two digits, or as many as it takes to tell it from 1."""
    if factor >= 10:
        return f"x{factor:.0f}"
    return next(text for digits in count(2) if (text := f"x{factor:.{digits}g}") != "x1")


def _together(names: list[str]) -> str:
    """Dimensions that grow by the same factor, in one word where there is one."""
    if all(name in names for name in WIDTH):
        rest = [name for name in names if name not in WIDTH]
        names = ["all", *rest[1:]] if rest[:1] == ["layers"] else ["width", *rest]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _factors(shape: Shape, event: Event) -> dict[str, float]:
    """The factor by which an event grows each dimension; those within layers over the means of old layers.

    What grows in new layers alone has none.
    """
    grown, lineage = expand(shape, event.expansions)
    before, after = _sizes(shape, tuple(range(len(shape.layers)))), _sizes(grown, lineage)
    kinds = {kind_of(expansion) for expansion in event.expansions}
    return {
        name: after[name] / before[name] for name in before if name in kinds and after[name] > before[name]
    }


def _sizes(shape: Shape, lineage: Lineage) -> dict[str, float]:
    """The six sizes of a shape; those within layers are means over the layers that are not new."""
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
