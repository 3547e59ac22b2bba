"""Where workers stand, seen from a machine whose clock is off."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from nasgrow.engines import standing
from nasgrow.engines.standing import SILENT, WORKERS, Board, Standing, elsewhere, standings

STANDING = Standing(0, "search", 3, "no growth", 1, 1, 0.5, 2.0, None)


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_off_hides_nobody_and_keeps_nobody(
    hours: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):  # as two machines with one process number
        Board(tmp_path, 0).write(STANDING, now=True)
    gone = min((tmp_path / WORKERS).iterdir())
    now = time.time()
    os.utime(gone, (now - SILENT - 5, now - SILENT - 5))
    monkeypatch.setattr(time, "time", lambda: now + 3600 * hours)
    assert list(standings(tmp_path)) == [STANDING]
    assert len(list((tmp_path / WORKERS).iterdir())) == 2, "looking leaves nothing"


def test_another_machine_is_noticed_as_long_as_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "KERNEL", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("here\n", encoding="utf-8")
    assert not elsewhere(tmp_path)
    Board(tmp_path, 0).write(STANDING, now=True)
    with monkeypatch.context() as container:
        container.setattr(socket, "gethostname", lambda: "a container that was restarted")
        assert not elsewhere(tmp_path), "it is this machine all the same"
    (tmp_path / "boot_id").write_text("booted again\n", encoding="utf-8")
    assert not elsewhere(tmp_path), "it is this machine all the same"
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    (tmp_path / "boot_id").write_text("there\n", encoding="utf-8")
    Board(tmp_path, 0).write(STANDING, now=True)
    assert elsewhere(tmp_path), "the first is, seen from there"
    assert standings(tmp_path) == [STANDING] * 2
    before = time.time() - SILENT - 5
    for path in (tmp_path / WORKERS).iterdir():
        os.utime(path, (before, before))
    assert not elsewhere(tmp_path), "it is silent"


def test_a_machine_that_has_no_name_of_its_own_goes_by_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "KERNEL", tmp_path / "none")
    Board(tmp_path, 0).write(STANDING, now=True)
    assert not elsewhere(tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert elsewhere(tmp_path)
