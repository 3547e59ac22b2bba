"""Two workers on a disk on which every write takes its time: no damage, and nobody is taken for dead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nasgrow.engines.worker import work
from nasgrow.search.ledger import KINDS
from nasgrow.search.outcome import RUNS
from nasgrow.search.trials import read_trials
from nasgrow.training.records import read_metrics
from nasgrow.training.trunks import Store
from tests.engines.test_survival import ledger_of, results, states
from tests.processes import Program
from tests.search.studies import SPACE, begin_study, write_study
from tests.search.test_objective import nothing

# Files grow before the eyes of whoever looks, and what is renamed or flushed is waited for. The first
# checkpoint takes longer than a worker may be silent.
PROGRAM = """
import os, sys, time
from functools import wraps
from pathlib import Path
from nasgrow.cli import worker
from nasgrow.search import storage
from nasgrow.training import checkpoint, loop, tensors
from nasgrow.training.trunks import follow
storage.HEARTBEAT, storage.GRACE = 1, 4
loop.CHECKPOINT_SECONDS = 0.2
worker.draw_curve = lambda folder, path: path.write_bytes(b"")
PAUSE = 0.01

def waited_for(do):
    @wraps(do)
    def slow(*given):
        time.sleep(PAUSE)
        return do(*given)
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

def long_at_first(save):
    def slow(*given):
        if not Path("first").exists():
            Path("first").touch()
            time.sleep(storage.GRACE + 2)
        save(*given)
    return slow

os.fsync, os.replace, os.rename = map(waited_for, (os.fsync, os.replace, os.rename))
Path.write_text, Path.write_bytes = by_halves(Path.write_text), by_halves(Path.write_bytes)
tensors.save_file, follow.save_file = by_halves(tensors.save_file), by_halves(follow.save_file)
checkpoint.write_tensors = long_at_first(checkpoint.write_tensors)
sys.exit(worker.run(Path(sys.argv[1]), int(sys.argv[2]), None, False))
"""


def test_a_slow_disk_does_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NASGROW_STORAGE", raising=False)
    known = {f"both at {at}": {"start": 0.5, "at.1": at, "at.2": at} for at in (0.3, 0.5)}
    path = write_study(
        tmp_path,
        space={**SPACE, "known": known},  # all that is tried: nothing depends on the order of trials
        trials=len(known),
        baselines={"shares": [], "learning_rates": [0.006]},
        trunks={"share": 1.0},
    )
    _, folder, _ = begin_study(path)
    workers = [Program(PROGRAM, [str(folder), str(index)], tmp_path) for index in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0], workers[0].err + workers[1].err
    assert [worker.err for worker in workers] == ["", ""]

    assert (tmp_path / "first").exists()
    assert set(states(path)) == {"COMPLETE"}, "nobody was taken for dead"
    assert len(read_trials(folder)) == len(states(path))
    for run in (folder / RUNS).iterdir():
        assert json.loads((run / "result.json").read_text(encoding="utf-8"))["status"] == "finished"
        assert [record["kind"] for record in read_metrics(run)].count("final") == 1
    store = Store(tmp_path / "runs" / "trunks", 1e9)
    assert [*store]
    assert {key: store.fault(key) for key in store} == dict.fromkeys(store)
    assert not [*tmp_path.glob("runs/**/*.tmp")]

    (tmp_path / "fast").mkdir()
    monkeypatch.chdir(tmp_path / "fast")
    _, fast, alone = begin_study(path)
    cpu = torch.device("cpu")
    work(alone, fast, index=0, device=cpu, attach=nothing, warn=print, stop=lambda: False, kinds=KINDS)
    assert results(ledger_of(folder)) == results(alone)
