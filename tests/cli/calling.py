"""The command line, called in this process."""

from __future__ import annotations

import sys

import pytest

from nasgrow.cli.main import main


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of ``nasgrow`` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["nasgrow", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert isinstance(stop.value.code, int | None)
    return stop.value.code or 0
