"""The short names of schedules."""

from __future__ import annotations

from typing import Any

import pytest

from nasgrow.names import short_name
from nasgrow.schedule import schedule_from

START: dict[str, Any] = {"hidden": 16, "layers": 2, "mlp": 64, "heads": 2, "key": 8, "value": 8}
WIDER = [{"expand": "hidden", "to": 32}, {"expand": "mlp", "to": 128}, {"expand": "heads", "to": 4}]
DEEPER = {"expand": "layers", "at": [1, 2]}


def event(at: float, *grow: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"at": at, "grow": list(grow), **more}


@pytest.mark.parametrize(
    ("events", "name"),
    [
        ([], "h=16, N=2, p=64, E=2"),
        ([event(0.05, *WIDER), event(0.55, DEEPER)], "x2 width at 5%, x2 layers at 55%"),
        ([event(0.5, *WIDER, DEEPER)], "x2 all at 50%"),
        ([event(0.125, *WIDER[:2])], "x2 hidden and mlp at 12.5%"),
        ([event(0.5, WIDER[0], {"expand": "layers", "at": [1]})], "x1.5 layers plus x2 hidden at 50%"),
        ([event(0.5, *WIDER, {"expand": "key", "to": 96})], "x2 width plus x12 key at 50%"),
        ([event(0.5, {"expand": "mlp", "to": 67})], "x1.05 mlp at 50%"),
        ([event(0.5, {"expand": "mlp", "to": 641})], "x10 mlp at 50%"),
        ([event(0.5, DEEPER, operator="stack")], "x2 layers by stack at 50%"),
        ([event(0.5, {"expand": "mlp", "to": 128, "layers": [0]})], "x1.5 mlp at 50%"),
        (
            [event(0.1 * n, {"expand": "mlp", "to": 64 + 64 * n}) for n in range(1, 8)],
            "x2 mlp at 10%, x1.5 mlp at 20%, x1.3 mlp at 30%, x1.2 mlp at 40%, 3 more events",
        ),
    ],
)
def test_a_name_says_what_grows_by_how_much_and_when(events: list[dict[str, Any]], name: str) -> None:
    assert short_name(schedule_from({"start": START, "events": events})) == name


def test_the_smallest_factor_is_told_from_1() -> None:
    start = {**START, "mlp": 4096}
    events = [event(0.5, {"expand": "mlp", "to": 4097}), event(0.6, {"expand": "mlp", "to": 4137})]
    named = short_name(schedule_from({"start": start, "events": events}))
    assert named == "x1.0002 mlp at 50%, x1.01 mlp at 60%"


def test_what_grows_in_new_layers_alone_has_no_factor() -> None:
    grow: list[dict[str, Any]] = [
        {"expand": "layers", "at": [1]},
        {"expand": "mlp", "to": 128, "layers": [1]},
    ]
    named = short_name(schedule_from({"start": START, "events": [event(0.5, *grow)]}))
    assert named == "x1.5 layers at 50%"


def test_new_layers_of_other_sizes_do_not_count_for_the_growth_of_old_ones() -> None:
    small: dict[str, Any] = {
        "expand": "layers",
        "at": [1],
        "layer": {"mlp": 8, "heads": 1, "key": 8, "value": 8},
    }
    named = short_name(schedule_from({"start": START, "events": [event(0.5, WIDER[1], small)]}))
    assert named == "x1.5 layers plus x2 mlp at 50%"
    one: dict[str, Any] = {**START, "layers": 1}
    assert short_name(schedule_from({"start": one, "events": [event(0.5, small)]})) == "x2 layers at 50%"
