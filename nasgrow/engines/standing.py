"""Where each worker of a study stands and what it says: small files for each, for whoever watches."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WORKERS = "workers"
"""The folder of these files in a study's folder."""

WARNING = "warning: "
"""How a line of a log begins that its launcher tells."""

SILENT = 120.0
"""Seconds after which a worker that writes nothing is taken to be gone."""

KERNEL = Path("/proc/sys/kernel/random/boot_id")
"""Where Linux has a name for the time until it is booted again."""

_PAUSE = 0.5
_LAUNCH = secrets.token_hex(4)  # launchers in containers have the same few numbers


@dataclass(frozen=True)
class Standing:
    """What a worker does at the moment."""

    worker: int
    kind: str
    trial: int
    schedule: str
    stage: int
    stages: int
    fraction: float
    loss: float | None
    validation: float | None


class Board:
    """One worker's file."""

    def __init__(self, folder: Path, worker: int) -> None:
        self.worker = worker
        self._path = folder / WORKERS / f"{worker}-{secrets.token_hex(4)}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._written = 0.0

    def write(self, standing: Standing, *, now: bool = False) -> None:
        """Say where the worker stands; more often than twice a second says nothing new."""
        if now or time.monotonic() - self._written > _PAUSE:
            beside = self._path.with_suffix(".tmp")  # a view, not a record: it need not survive a power cut
            try:
                told = {**asdict(standing), "machine": sorted(machine_names())}
                beside.write_text(json.dumps(told), encoding="utf-8")
                beside.replace(self._path)
            except OSError:
                return  # a full disk is noticed where it matters
            self._written = time.monotonic()

    def clear(self) -> None:
        """The worker does nothing now."""
        self._path.unlink(missing_ok=True)


def standings(folder: Path) -> list[Standing]:
    """Where the workers stand that have been heard of lately, in their order."""
    found = []
    for told in _heard(folder):
        told.pop("machine", None)
        with suppress(TypeError):  # of another version
            found.append(Standing(**told))
    return sorted(found, key=lambda standing: (standing.worker, standing.kind, standing.trial))


def elsewhere(folder: Path) -> bool:
    """Whether a worker of another machine has been heard of lately: one that has no name of this one's."""
    here = machine_names()
    return any(here.isdisjoint(told.get("machine", here)) for told in _heard(folder))


def machine_names() -> set[str]:
    """What a machine is known by: its containers share the kernel's name, and after a boot it has its own."""
    try:
        kernel = {KERNEL.read_text(encoding="utf-8").strip()}
    except OSError:
        kernel = set()
    return {socket.gethostname(), *kernel}


def _heard(folder: Path) -> Iterator[dict[str, Any]]:
    now = _now(folder / WORKERS)
    for path in (folder / WORKERS).glob("*.json"):
        try:
            if now - path.stat().st_mtime < SILENT:
                yield json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # it was removed or replaced just now


def log_of(folder: Path, worker: int) -> Path:
    """What a worker that this process has started says."""
    return folder / WORKERS / f"{worker}-{_LAUNCH}-{os.getpid()}.log"


def logs(folder: Path) -> list[Path]:
    """The logs of all workers that this process has started."""
    return sorted((folder / WORKERS).glob(f"*-{_LAUNCH}-{os.getpid()}.log"))


def warnings_in(folder: Path) -> list[str]:
    """What workers that this process has started warn of, once each, however many say it."""
    lines: dict[str, None] = {}
    for log in logs(folder):
        with suppress(OSError):
            whole = log.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
            lines |= dict.fromkeys(line for line in whole if line.startswith(WARNING))
    return list(lines)


def _now(folder: Path) -> float:
    """The time as the file system has it, whose clock may not be this machine's."""
    probe = folder / f".{os.getpid()}.{secrets.token_hex(4)}.now"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()  # it can be read only
    finally:
        with suppress(OSError):
            probe.unlink()
