"""Where workers stand, seen from a machine whose clock is off."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nasgrow.engines.standing import SILENT, WORKERS, Board, Standing, standings

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
