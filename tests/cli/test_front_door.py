"""What a new user meets first: help, built-in spaces, schemas."""

from __future__ import annotations

import errno
import json

import pytest
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError, OperationalError, ProgrammingError

from nasgrow.cli.durations import between
from nasgrow.cli.main import COMMAND_SECTIONS, cli
from nasgrow.errors import UserError
from nasgrow.spaces.builtin import built_in
from tests.cli.calling import call


def test_help_groups_all_commands_and_cuts_no_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = [name for names in COMMAND_SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(cli.commands)
    assert call(monkeypatch, "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "..." not in shown.replace("[ARGS]...", "")
    for name, command in cli.commands.items():
        summary = " ".join((command.help or "").split("\n\n")[0].split())
        assert f"{name} {summary.rstrip('.')}" in shown


def test_spaces_are_listed_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "spaces") == 0
    out = capsys.readouterr().out
    assert all(f"{name}\n  " in out for name in built_in())
    assert call(monkeypatch, "spaces", "slots") == 0
    assert capsys.readouterr().out == built_in()["slots"].read_text(encoding="utf-8")
    assert call(monkeypatch, "spaces", "slot") == 2
    assert "is not a built-in space; there are compound" in capsys.readouterr().err


def test_schemas_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "schema") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "nasgrow study"


def statement(kind: type[DBAPIError], told: str) -> Exception:
    """An error of Optuna's that a database's caused."""
    error = StorageInternalError("a bug")
    error.__cause__ = kind("INSERT", {}, Exception(told))
    return error


@pytest.mark.parametrize(
    "bug",
    [
        ValueError("a bug"),
        KeyError("a bug"),
        AssertionError("a bug"),
        OSError(errno.EBADF, "a bug"),
        OSError("a bug"),
        InvalidRequestError("a bug"),
        UpdateFinishedTrialError("a bug"),
        statement(IntegrityError, "UNIQUE constraint failed"),
    ],
)
def test_a_bug_is_a_traceback_and_a_request_to_report_it(
    bug: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str | None) -> int:
        raise bug

    monkeypatch.setattr("nasgrow.cli.spaces.run", broken)
    assert call(monkeypatch, "spaces") == 1
    lines = capsys.readouterr().err.splitlines()
    assert "Traceback (most recent call last):" in lines
    assert any("a bug" in line for line in lines[1:-1])
    assert lines[-1].startswith("nasgrow: this is a bug in nasgrow ")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("it.yaml: trials: must be more"), "it.yaml: trials: must be more"),
        (OSError(errno.ENOSPC, "No space left", "a.json"), "a.json: no space left"),
        (PermissionError(errno.EACCES, "Permission denied", "a.json"), "a.json: permission denied"),
        (statement(OperationalError, "disk I/O error"), "storage: cannot be used: disk I/O error"),
        (
            statement(ProgrammingError, "permission denied for table studies"),
            "storage: cannot be used: permission denied for table studies",
        ),
    ],
)
def test_a_mistake_of_the_user_or_of_the_machine_is_one_line(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def mistaken(name: str | None) -> int:
        raise error

    monkeypatch.setattr("nasgrow.cli.spaces.run", mistaken)
    assert call(monkeypatch, "spaces") == 2
    assert capsys.readouterr().err == f"nasgrow: {told}\n"


@pytest.mark.parametrize(
    "name", ["train", "search", "confirm", "report", "compare", "transfer", "family", "slope"]
)
def test_every_command_that_shows_progress_can_be_quiet(name: str) -> None:
    assert "--quiet" in {option for parameter in cli.commands[name].params for option in parameter.opts}


def test_a_time_that_is_not_known_well_is_a_range() -> None:
    assert between(58, 150) == "58 s to 2.5 min"
    assert between(74, 112) == "1.2 min to 1.9 min"
    assert between(599, 601) == "about 10 min"
    assert between(1800, 7200) == "30 min to 2.0 h"
    assert between(0.3, 30) == "at most 30 s"
