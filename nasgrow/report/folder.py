"""What the folder of one run says; what in it cannot be read is named, and the rest is used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter

from nasgrow.operators import operator_from
from nasgrow.report.trajectory import Trajectory
from nasgrow.training.records import DESCRIPTION, METRICS, RESULT, TEST, Result, read_record

T = TypeVar("T")
ENDED = TypeAdapter(Result)
TRAIN = b'{"kind": "train"'
"""How the lines begin that only a single run's own figure needs; nine in ten, and not parsed here."""


@dataclass(frozen=True)
class Happened:
    """An event as it was recorded.

    Attributes:
        fraction: The part of the budget that was spent.
        charged: The same in FLOPs.
        loss_before: The validation loss before the event.
        loss_after: The validation loss after it, before any further step.
        change: The largest change of a logit, relative to the largest logit.
        recovery: The part of the budget until an evaluation was below the loss before; None if none was.
        operator: What gave new parameters their values; None in records from before there was a choice.
    """

    fraction: float
    charged: int
    loss_before: float
    loss_after: float
    change: float
    recovery: float | None
    operator: str | None = None


@dataclass(frozen=True)
class Origin:
    """Where a run comes from.

    Attributes:
        fingerprint: Of its data.
        machines: The machine of each time it was taken up.
        versions: The software of each time.
        commits: The commit of each time.
        operator: The training's, for events whose records name none.
    """

    fingerprint: str | None = None
    machines: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    operator: str | None = None


@dataclass(frozen=True)
class RunFolder:
    """One run.

    Attributes:
        result: How it ended; None if that is not there.
        origin: Where it comes from.
        curve: Its evaluations; None if they cannot be read.
        events: Its events.
        problems: What could not be read, a line each.
        stretches: Its losses on stretches of the test text; empty if it was not tested.
    """

    result: Result | None
    origin: Origin
    curve: Trajectory | None
    events: tuple[Happened, ...]
    problems: tuple[str, ...]
    stretches: tuple[float, ...] = ()


def read_folder(place: Path, *, finished: bool) -> RunFolder:
    """Read a run's folder.

    Args:
        place: The folder.
        finished: Whether the run is known to have come to its end, so that a result must be there.
    """
    problems: list[str] = []

    def attempt(read: Callable[[Path], T], name: str) -> T | None:
        try:
            return read(place / name)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            problems.append(_problem(place / name))
            return None

    expected = finished or (place / RESULT).exists()
    result = attempt(lambda path: ENDED.validate_json(path.read_bytes()), RESULT) if expected else None
    origin = attempt(_origin, DESCRIPTION) or Origin()
    whole = result is not None and result.status == "finished"
    curve, events = attempt(lambda path: _metrics(path, origin.operator, whole), METRICS) or (None, ())
    stretches = (attempt(_stretches, TEST) or ()) if (place / TEST).exists() else ()
    return RunFolder(result, origin, curve, events, tuple(problems), stretches)


def _stretches(path: Path) -> tuple[float, ...]:
    """The losses on stretches of the test text; none if one is not finite, or they were not recorded."""
    found = json.loads(path.read_bytes()).get("stretches", ())
    return () if any(one is None for one in found) else tuple(float(one) for one in found)


def _origin(path: Path) -> Origin:
    described = json.loads(path.read_bytes())
    machines = [described["machine"], *described.get("resumed_on", [])]
    operator = described["run"].get("training", {}).get("operator")
    return Origin(
        _text(described["run"]["fingerprint"]),
        tuple(_text(f"{one['device']}, {one['cores']} cores, {one['system']}") for one in machines),
        tuple(_text(_versions(one)) for one in machines),
        tuple(_text(one.get("commit") or "not recorded") for one in machines),
        None if operator is None else str(operator_from(operator)),
    )


def _text(value: object) -> str:
    """Text that any file can hold: half of a character, which JSON allows, becomes a question mark."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _versions(machine: dict[str, Any]) -> str:
    named = {"python": machine["python"], **machine["versions"]}
    return ", ".join(f"{name} {version}" for name, version in named.items())


def _problem(path: Path) -> str:
    where = "/".join(path.parts[-3:])
    return f"{where}: {'is damaged' if path.exists() else 'is missing'}"


def _metrics(path: Path, operator: str | None, whole: bool) -> tuple[Trajectory, tuple[Happened, ...]]:
    """Evaluations and events; what is damaged is left out, unless all must be there."""
    *lines, _ = path.read_bytes().split(b"\n")  # what follows the last line end was cut short
    read = [read_record(line) for line in lines if not line.startswith(TRAIN)]
    records = [record for record in read if record is not None]
    if whole and (len(records) < len(read) or not any(record["kind"] == "final" for record in records)):
        raise ValueError
    looked = [r for r in records if r["kind"] == "evaluation" and r["validation"] is not None]
    looked += [
        {**r, "aligned": 1.0, "validation": r["evaluation"]}
        for r in records
        if r["kind"] == "final" and r.get("evaluation") is not None
    ]
    happened = []
    for record in records:
        if record["kind"] == "event":
            at, before = record["fraction"], _number(record["loss_before"])
            below = [r["fraction"] for r in looked if r["fraction"] > at and r["validation"] < before]
            recovery = below[0] - at if below else None
            after, change = _number(record["loss_after"]), _number(record["change"])
            by = record.get("operator", operator)
            happened.append(Happened(at, record["charged"], before, after, change, recovery, by))
    columns = np.array(
        [(r["aligned"], r["fraction"], r["validation"]) for r in looked], dtype=np.float64
    ).reshape(-1, 3)
    marks = tuple((event.fraction, event.loss_before) for event in happened)
    curve = Trajectory(columns[:, 0], columns[:, 1], columns[:, 2], marks)
    return curve, tuple(happened)


def _number(value: float | None) -> float:
    """A recorded number: one that was not finite is null in a record."""
    return math.nan if value is None else float(value)
