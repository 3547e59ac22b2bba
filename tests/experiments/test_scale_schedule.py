"""Re-targeting: shares and times kept, sizes that only grow, the new final shape at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasgrow.expansions import diff
from nasgrow.experiments.scale_schedule import retarget
from nasgrow.experiments.transfer import resized, scaled
from nasgrow.operators import Bert2Bert
from nasgrow.schedule import Event, Schedule, schedule_from
from nasgrow.shape import Shape
from nasgrow.verify import PAPER
from tests.strategies import examples, expansion_sequences, shapes

TWO: dict[str, Any] = {
    "start": {"hidden": 32, "layers": 2, "mlp": 64, "heads": 1, "key": 16, "value": 16},
    "events": [
        {"at": 0.15, "grow": [{"expand": "hidden", "to": 64}, {"expand": "layers", "at": [1, 2]}]},
        {"at": 0.4, "grow": [{"expand": "mlp", "to": 256}, {"expand": "heads", "to": 4}]},
    ],
}
SCHEDULE = schedule_from(TWO)


def sizes(schedule: Schedule) -> list[tuple[int, int, int, int]]:
    return [
        (shape.hidden, len(shape.layers), shape.layers[0].mlp, shape.layers[0].head_count)
        for shape in schedule.shapes
    ]


def test_shares_and_times_are_kept() -> None:
    moved = retarget(SCHEDULE, scaled(SCHEDULE.final, 2), PAPER)
    assert sizes(SCHEDULE) == [(32, 2, 64, 1), (64, 4, 64, 1), (64, 4, 256, 4)]
    assert sizes(moved) == [(64, 4, 128, 2), (128, 8, 128, 2), (128, 8, 512, 8)]
    assert [event.at for event in moved.events] == [0.15, 0.4]


def test_operators_stay_with_their_events() -> None:
    first, second = TWO["events"]
    named = {**TWO, "events": [{**first, "operator": "bert2bert(init=fpi)"}, second]}
    schedule = schedule_from(named)
    moved = retarget(schedule, scaled(schedule.final, 2), PAPER)
    assert [event.operator for event in moved.events] == [Bert2Bert(init="fpi"), None]


def test_new_layers_come_at_the_same_relative_places() -> None:
    """Of four layers the first and the third are there from the start; of eight, the two pairs."""
    marked = resized(SCHEDULE.final, {"layers": 8})
    moved = retarget(SCHEDULE, marked, PAPER)
    (inserted,) = [grow for grow in moved.events[0].expansions if hasattr(grow, "at")]
    assert inserted.at == (2, 2, 4, 4)


def test_the_same_final_shape_gives_the_same_schedule() -> None:
    assert retarget(SCHEDULE, SCHEDULE.final, PAPER) == SCHEDULE


def test_sizes_are_rounded_and_keys_stay_even_under_rope() -> None:
    data = {"start": {"hidden": 3, "layers": 1, "mlp": 5, "heads": 1, "key": 4, "value": 4}}
    grow = [{"expand": "hidden", "to": 8}, {"expand": "key", "to": 12}]
    schedule = schedule_from({**data, "events": [{"at": 0.5, "grow": grow}]})
    final = Shape.uniform(hidden=12, layers=1, mlp=5, heads=1, key=20, value=4)
    plain, rope = (retarget(schedule, final, replace(PAPER, positions=kind)) for kind in ("none", "rope"))
    assert (plain.start.hidden, plain.start.layers[0].groups[0].key) == (5, 7)  # 4.5 and 6.67
    assert rope.start.layers[0].groups[0].key == 6


def test_an_event_that_rounds_to_nothing_is_left_out() -> None:
    data = {"start": {"hidden": 8, "layers": 1, "mlp": 99, "heads": 1, "key": 4, "value": 4}}
    events = [{"at": 0.2, "grow": [{"expand": "mlp", "to": 100}]}]
    events.append({"at": 0.5, "grow": [{"expand": "hidden", "to": 16}]})
    schedule = schedule_from({**data, "events": events})
    moved = retarget(schedule, resized(schedule.final, {"mlp": 10}), PAPER)
    assert [event.at for event in moved.events] == [0.5]


@given(st.data())
@examples(60)
def test_whatever_the_shapes_it_ends_at_the_final_one(data: st.DataObject) -> None:
    schedule = Schedule(data.draw(shapes(even_keys=True)))
    for at in (0.2, 0.5, 0.7):
        expansions = data.draw(expansion_sequences(schedule.final, 3, even_keys=True))
        if expansions:
            schedule = Schedule(schedule.start, (*schedule.events, Event(at, tuple(expansions))))
    final = data.draw(shapes(even_keys=True))
    variant = replace(PAPER, positions="rope")
    moved = retarget(schedule, final, variant)
    assert moved.final == final
    assert {event.at for event in moved.events} <= {event.at for event in schedule.events}
    for shape in moved.shapes:
        variant.check(shape)
        diff(shape, final)  # every stage can grow into the last


@pytest.mark.parametrize(
    ("factor", "expected"), [(2, (128, 8, 512, 8)), (0.5, (32, 2, 128, 2)), (0.1, (6, 1, 26, 1))]
)
def test_scaling_leaves_the_size_of_heads(factor: float, expected: tuple[int, ...]) -> None:
    shape = scaled(SCHEDULE.final, factor)
    layer = shape.layers[0]
    assert (shape.hidden, len(shape.layers), layer.mlp, layer.head_count) == expected
    assert set(layer.heads) == {(16, 16)}
