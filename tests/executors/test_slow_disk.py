"""A driver and two workers on a disk on which every write takes its time: no damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from nasgrow.training.prefixes import StateStore
from tests.surviving import assert_whole, finish, go, search, surviving_study, undisturbed

# Writes are visible while they are under way, and renames and flushes are slow.
SLOW = """
import os, time
from functools import wraps
from pathlib import Path
from nasgrow.training import tensors
from nasgrow.training.prefixes import reuse
PAUSE = 0.005

def waited_for(do):
    @wraps(do)
    def slow(*given, **named):
        time.sleep(PAUSE)
        return do(*given, **named)
    return slow

def by_halves(write):
    @wraps(write)
    def slow(*given, **named):
        path = next(one for one in given if isinstance(one, Path))
        written = write(*given, **named)
        whole = path.read_bytes()
        with path.open("wb") as file:
            file.write(whole[: len(whole) // 2])
            file.flush()
            time.sleep(PAUSE)
            file.write(whole[len(whole) // 2 :])
        return written
    return slow

os.fsync, os.replace, os.rename = map(waited_for, (os.fsync, os.replace, os.rename))
Path.write_text, Path.write_bytes = by_halves(Path.write_text), by_halves(Path.write_bytes)
tensors.save_file, reuse.save_file = by_halves(tensors.save_file), by_halves(reuse.save_file)
"""


def test_a_slow_disk_does_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("NASGROW_STORAGE", raising=False)
    go()
    driver = search(surviving_study(tmp_path, prefix_cache={"share": 1.0}), everywhere=SLOW)
    assert_whole(expected, finish(driver))
    assert driver.err == ""
    store = StateStore(Path("runs/prefixes"), 1e9)
    assert [*store]
    assert {key: store.fault(key) for key in store} == dict.fromkeys(store)
    assert not [*Path("runs").rglob("*.tmp")]
