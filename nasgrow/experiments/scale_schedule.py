"""Scale a schedule to another final shape.

Every size of every stage keeps its share of its final size, and every event keeps its fraction of the budget.
Each layer and head of the new final shape follows the one at the same relative place of the old: if eight
layers follow four, the first two of the eight are added when the first of the four was. Shares only rise, so
sizes do too. At the end every share is 1, so the schedule ends exactly at the new final shape.
"""

from __future__ import annotations

from dataclasses import replace

from nasgrow.expansions import between, expand
from nasgrow.schedule import Event, Schedule
from nasgrow.shape import Layer, Shape, Variant

Stage = dict[int, Layer]
"""The layers of one stage, by the index that they will have in the final shape."""


def retarget(schedule: Schedule, final: Shape, variant: Variant) -> Schedule:
    """Scale the sizes of a schedule so that it ends at ``final``.

    An event that changes no size after rounding is left out.
    """
    old = schedule.final
    stages = _stages(schedule)
    origins = [_origin(place, len(final.layers), len(old.layers)) for place in range(len(final.layers))]
    births = [next(i for i, stage in enumerate(stages) if origin in stage) for origin in origins]
    # With fewer layers, none might exist at the start: the first ones to appear then start there.
    born = [0 if birth == min(births) else birth for birth in births]
    unit = 2 if variant.positions == "rope" else 1

    def shape(index: int) -> tuple[Shape, list[int]]:
        present = [place for place in range(len(final.layers)) if born[place] <= index]
        layers = [
            _layer(
                stages[max(index, births[place])][origins[place]],
                old.layers[origins[place]],
                final.layers[place],
                unit,
            )
            for place in present
        ]
        hidden = _scaled(schedule.shapes[index].hidden, old.hidden, final.hidden)
        return replace(final, hidden=hidden, layers=tuple(layers)), present

    start, present = shape(0)
    now, events = start, []
    for index, event in enumerate(schedule.events, 1):
        grown, more = shape(index)
        expansions = between(now, grown, [more.index(place) for place in present])
        if expansions:
            events.append(Event(event.at, expansions, event.operator))
        now, present = grown, more
    assert now == final, (now, final)
    return Schedule(start, tuple(events))


def _stages(schedule: Schedule) -> list[Stage]:
    """Return the layers of each stage, by the index that they will have in the final shape."""
    shapes = schedule.shapes
    places = list(range(len(shapes[-1].layers)))
    found: list[Stage] = [dict(enumerate(shapes[-1].layers))]
    for event, shape in zip(reversed(schedule.events), reversed(shapes[:-1]), strict=True):
        lineage = expand(shape, event.expansions)[1]
        before = {origin: place for origin, place in zip(lineage, places, strict=True) if origin is not None}
        places = [before[index] for index in range(len(shape.layers))]
        found.append(dict(zip(places, shape.layers, strict=True)))
    return found[::-1]


def _layer(now: Layer, old: Layer, final: Layer, unit: int) -> Layer:
    """Scale a layer: return the layer whose shares of ``final`` are those of ``now`` in ``old``."""
    heads = []
    for index, (key, value) in enumerate(final.heads):
        origin = _origin(index, final.head_count, old.head_count)
        if origin < now.head_count:  # heads are only appended, so the existing ones are the first
            (key_now, value_now), (key_old, value_old) = now.heads[origin], old.heads[origin]
            heads.append((_scaled(key_now, key_old, key, unit), _scaled(value_now, value_old, value)))
    return Layer.of_heads(_scaled(now.mlp, old.mlp, final.mlp), heads)


def _origin(place: int, count: int, of: int) -> int:
    """Return the index among ``of`` items at the same relative place as index ``place`` among ``count``."""
    return place * of // count


def _scaled(now: int, old: int, final: int, unit: int = 1) -> int:
    """Return the share ``now / old`` of another final size, rounded to one or more whole units."""
    return unit * max(1, (2 * now * final + old * unit) // (2 * old * unit))
