"""Ensure one driver per study: a lock in its folder, and a lease in its storage if that is a server."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout

from nasgrow.errors import UserError
from nasgrow.training.atomic_files import to_json, write_text

if TYPE_CHECKING:  # reports import this module, and do not need Optuna
    from optuna.study import Study as OptunaStudy

LOCK, DRIVER = ".driver.lock", "driver.json"

State = Literal["running", "stopped", "ended"]

NOT_PLANNED: Mapping[str, int | None] = {"baselines": None, "confirming": None}
"""The planned numbers of trials if none is known."""

LEASE = "driver"
"""The attribute of the Optuna study that names its driver."""

LEASE_SECONDS = 120.0
"""Seconds that a lease holds after its last renewal, and so blocks others if its driver died elsewhere."""

SKEW_SECONDS = 3600.0
"""The most seconds by which the clocks of two machines may differ.

A lease that seems to last longer than ``LEASE_SECONDS`` and this together is invalid.
"""

SILENT_SECONDS = 60.0
"""A driver that has written nothing for this long counts as dead, if its lock cannot be checked."""

LOOK_SECONDS = 0.5
"""Seconds to wait for the lock: longer than ``nasgrow status`` holds it to check whether a driver does."""


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


@contextmanager
def driving(folder: Path) -> Iterator[None]:
    """Hold the lock of the study in ``folder`` while the body runs, so that no other process drives it.

    The driver's file says ``running`` from then on. The body must :func:`show` another state at its
    end; without that, readers take the driver for stopped.

    Raises:
        UserError: Another process holds the lock.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=LOOK_SECONDS)
    except Timeout:
        raise UserError(f"{folder}: {_driver(folder)} is running this study already") from None
    try:
        show(folder, "running")
        yield
    finally:
        lock.release()


def show(
    folder: Path,
    state: State,
    running: Sequence[Mapping[str, Any]] = (),
    planned: Mapping[str, int | None] = NOT_PLANNED,
) -> None:
    """Write the current state of a study's driver to a file, for ``nasgrow status``.

    Args:
        folder: The study's folder.
        state: ``running``, ``stopped`` before its end, or ``ended`` with nothing left to do.
        running: The trials that are being trained, as plain data.
        planned: How many baseline trials there will be in all, at least (``baselines``), and how
            many confirmation trials (``confirming``); None where that is not known.
    """
    doing = {"driver": _this_process(), "state": state, "running": list(running), "planned": dict(planned)}
    write_text(folder / DRIVER, to_json(doing) + "\n")


def doing(folder: Path) -> dict[str, Any]:
    """Read what a study's driver wrote last: ``driver``, ``state``, ``running`` and ``planned``.

    The state is ``stopped``, with nothing running or planned, if the driver has died since, or if
    its file is missing or damaged.
    """
    try:
        read = json.loads((folder / DRIVER).read_text(encoding="utf-8"))
        found = {name: read[name] for name in ("driver", "state", "running")}
        planned = {**NOT_PLANNED, **read.get("planned", {})}
        found["planned"] = {name: planned[name] for name in NOT_PLANNED}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {"driver": "another process", "state": "stopped", "running": [], "planned": NOT_PLANNED}
    if found["state"] == "running" and not _is_held(folder):
        return {**found, "state": "stopped", "running": [], "planned": NOT_PLANNED}
    return found


def _is_held(folder: Path) -> bool:
    """Return whether a process holds the study's lock."""
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # the folder is read-only: check the driver's file instead, written every few seconds
        return time.time() - (folder / DRIVER).stat().st_mtime < SILENT_SECONDS


def _driver(folder: Path) -> str:
    """Return the process that wrote the driver's file last, in words."""
    return str(doing(folder)["driver"])[:200]


class Lease:
    """A lease on a study whose storage several machines can reach: only its holder may drive the study.

    Args:
        study: The Optuna study of the search, in which the lease is an attribute.
    """

    def __init__(self, study: OptunaStudy) -> None:
        self._study, self._renewed = study, 0.0

    def take(self) -> None:
        """Take the lease for :data:`LEASE_SECONDS`.

        It can be taken if it has expired or is this machine's. If another driver of this machine
        were alive, it would hold the folder's lock. Taking is not atomic: if two machines take the
        lease at once, the one that wrote first fails when it renews.

        Raises:
            UserError: A driver on another machine holds it.
        """
        held = self._held()
        if not self._is_ours(held):
            until = held.get("until")
            left = until - time.time() if isinstance(until, int | float) else 0.0
            if 0 < left < LEASE_SECONDS + SKEW_SECONDS:
                raise UserError(
                    f"{self._study.study_name}: {str(held.get('driver'))[:100]} is running this study "
                    f"already; if it has died, try again in {left:.0f} s"
                )
        self._write(time.time() + LEASE_SECONDS)

    def renew(self) -> None:
        """Renew the lease if half of its time has passed.

        Raises:
            UserError: A driver on another machine has taken the lease, because this one was
                suspended for too long.
        """
        if time.monotonic() - self._renewed > LEASE_SECONDS / 2:
            self.take()

    def release(self) -> None:
        """Release the lease, so that others may drive the study; keep one of another machine."""
        if self._is_ours(self._held()):
            self._write(0.0)

    def _held(self) -> dict[str, Any]:
        held = self._study.user_attrs.get(LEASE)
        return held if isinstance(held, dict) else {}

    def _is_ours(self, held: Mapping[str, Any]) -> bool:
        return held.get("host") == socket.gethostname()

    def _write(self, until: float) -> None:
        host = socket.gethostname()
        self._study.set_user_attr(LEASE, {"driver": _this_process(), "host": host, "until": until})
        self._renewed = time.monotonic()
