"""What of a database's errors is waited for, and what is one line at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import OperationalError

from nasgrow.study import storage


def failing(*messages: str, wrapped: bool = True) -> tuple[list[str], Callable[[], str]]:
    """The errors to come, and a step that raises one after the other, then succeeds.

    Optuna wraps most of them, but not all.
    """
    left = list(messages)

    def step() -> str:
        if not left:
            return "done"
        cause = OperationalError("INSERT", {}, sqlite3.OperationalError(left.pop(0)))
        if wrapped:
            raise StorageInternalError("An exception is raised") from cause
        raise cause from cause.orig

    return left, step


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_locked_file_is_waited_for_and_warned_of_once(
    wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nasgrow.study.storage.time.sleep", lambda seconds: None)
    warnings: list[str] = []
    _, step = failing("database is locked", "database is locked", wrapped=wrapped)
    assert storage.retried(step, warnings.append) == "done"
    assert warnings == ["storage: database is locked: retrying"]


def test_a_full_disk_is_not_waited_for() -> None:
    left, step = failing("database or disk is full", "never asked again")
    with pytest.raises(ValueError, match=r"^storage: cannot be used: database or disk is full$"):
        storage.retried(step, lambda message: None)
    assert left == ["never asked again"]
