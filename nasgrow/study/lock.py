"""One driver per study: a lock in its folder, and a lease in its storage where that is a server's."""

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

if TYPE_CHECKING:  # reports look at the lock, and do without Optuna
    from optuna.study import Study as OptunaStudy

LOCK, DRIVER = ".driver.lock", "driver.json"

State = Literal["running", "stopped", "ended"]

LEASE = "driver"
"""The attribute of the Optuna study that names its driver."""

LEASE_SECONDS = 120.0
"""How long a lease holds after it was last renewed: a driver that died elsewhere blocks no longer."""

SKEW_SECONDS = 3600.0
"""How far the clocks of two machines may differ: no driver wrote a lease that holds for longer."""

SILENT_SECONDS = 60.0
"""A driver that has shown nothing for longer has died, for a process that cannot look at its lock."""

LOOK_SECONDS = 0.5
"""For longer than ``nasgrow status`` holds the lock to see whether a driver does."""


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


@contextmanager
def driving(folder: Path) -> Iterator[None]:
    """Be the only driver of the study in ``folder`` on this machine while the body runs.

    Raises:
        UserError: Another process is.
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


def show(folder: Path, state: State, running: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write what the driver of a study is doing, for ``nasgrow status``.

    Args:
        folder: The study's folder.
        state: Whether it is at work, was stopped, or has nothing left to do.
        running: The trials that are being trained, as plain data.
    """
    doing = {"driver": _this_process(), "state": state, "running": list(running)}
    write_text(folder / DRIVER, to_json(doing) + "\n")


def doing(folder: Path) -> dict[str, Any]:
    """What the driver of a study wrote last; nothing is running if it has died since."""
    try:
        read = json.loads((folder / DRIVER).read_text(encoding="utf-8"))
        found = {name: read[name] for name in ("driver", "state", "running")}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {"driver": "another process", "state": "stopped", "running": []}
    if found["state"] == "running" and not _is_held(folder):
        return {**found, "state": "stopped", "running": []}
    return found


def _is_held(folder: Path) -> bool:
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a folder that may be read alone: a driver writes every few seconds
        return time.time() - (folder / DRIVER).stat().st_mtime < SILENT_SECONDS


def _driver(folder: Path) -> str:
    return str(doing(folder)["driver"])[:200]


class Lease:
    """The right to drive a study whose storage several machines reach, renewed while it is used.

    Args:
        study: The Optuna study of the search.
    """

    def __init__(self, study: OptunaStudy) -> None:
        self._study, self._renewed = study, 0.0

    def take(self) -> None:
        """Take the lease, also from a driver that died on this machine: it would hold the folder's lock.

        Raises:
            UserError: Another driver has it.
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
        """Renew the lease, if half of its time has passed.

        Raises:
            UserError: Another driver has taken it since, because this one was halted for too long.
        """
        if time.monotonic() - self._renewed > LEASE_SECONDS / 2:
            self.take()

    def release(self) -> None:
        """Let others drive the study."""
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
