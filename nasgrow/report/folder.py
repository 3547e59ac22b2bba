"""What the folder of one run says; what in it cannot be read is named, and the rest is used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nasgrow.report.trajectory import Trajectory
from nasgrow.training.records import DESCRIPTION, METRICS, RESULT

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
    """

    fraction: float
    charged: int
    loss_before: float
    loss_after: float
    change: float
    recovery: float | None


@dataclass(frozen=True)
class RunFolder:
    """One run.

    Attributes:
        result: What ``result.json`` says; empty if it is not there.
        machines: The machines it trained on, in words.
        versions: The software of each.
        commits: The commit of each.
        fingerprint: The data's.
        curve: Its evaluations.
        events: Its events.
        problems: What could not be read, a line each.
    """

    result: dict[str, Any]
    machines: tuple[str, ...]
    versions: tuple[str, ...]
    commits: tuple[str, ...]
    fingerprint: str | None
    curve: Trajectory | None
    events: tuple[Happened, ...]
    problems: tuple[str, ...]


def read_folder(place: Path, *, finished: bool) -> RunFolder:
    """Read a run's folder.

    Args:
        place: The folder.
        finished: Whether the run is known to have come to its end, so that a result must be there.
    """
    problems: list[str] = []
    result = _document(place / RESULT, problems) if finished or (place / RESULT).exists() else {}
    described = _document(place / DESCRIPTION, problems)
    machines = [described.get("machine", {}), *described.get("resumed_on", [])] if described else []
    try:
        curve, events = _metrics(place / METRICS)
    except (OSError, ValueError, KeyError, TypeError):
        curve, events = None, ()
        problems.append(_problem(place / METRICS))
    return RunFolder(
        result,
        tuple(_machine(machine) for machine in machines),
        tuple(_versions(machine) for machine in machines),
        tuple(str(machine.get("commit") or "not recorded") for machine in machines),
        described.get("run", {}).get("fingerprint"),
        curve,
        events,
        tuple(problems),
    )


def _document(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
        if isinstance(data, dict):
            return data
    except (OSError, ValueError):
        pass
    problems.append(_problem(path))
    return {}


def _problem(path: Path) -> str:
    where = "/".join(path.parts[-3:])
    return f"{where}: {'is damaged' if path.exists() else 'is missing'}"


def _metrics(path: Path) -> tuple[Trajectory, tuple[Happened, ...]]:
    *lines, _ = path.read_bytes().split(b"\n")  # what follows the last line end was cut short
    records = [json.loads(line) for line in lines if not line.startswith(TRAIN)]
    looked = [r for r in records if r["kind"] == "evaluation" and r["validation"] is not None]
    final = [r["validation"] for r in records if r["kind"] == "final"]
    happened = []
    for record in records:
        if record["kind"] == "event":
            at, before = record["fraction"], record["loss_before"]
            below = [r["fraction"] for r in looked if r["fraction"] > at and r["validation"] < before]
            recovery = below[0] - at if below else None
            after, change = record["loss_after"], record["change"]
            happened.append(Happened(at, record["charged"], before, after, change, recovery))
    columns = np.array(
        [(r["aligned"], r["fraction"], r["validation"]) for r in looked], dtype=np.float64
    ).reshape(-1, 3)
    marks = tuple((event.fraction, event.loss_before) for event in happened)
    curve = Trajectory(columns[:, 0], columns[:, 1], columns[:, 2], marks, final[-1] if final else None)
    return curve, tuple(happened)


def _machine(machine: dict[str, Any]) -> str:
    parts = (machine.get("device"), f"{machine.get('cores')} cores", machine.get("system"))
    return ", ".join(str(part) for part in parts)


def _versions(machine: dict[str, Any]) -> str:
    named = {"python": machine.get("python"), **machine.get("versions", {})}
    return ", ".join(f"{name} {version}" for name, version in named.items())
