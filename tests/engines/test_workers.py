"""Plain workers: processes that join a study wherever they are, as a batch system starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from optuna.trial import TrialState

from nasgrow.cli import worker
from nasgrow.engines import standing
from nasgrow.engines.crew import FULL
from nasgrow.engines.standing import Board, Standing
from nasgrow.engines.worker import OutOfMemory, Worker
from nasgrow.search.ledger import KINDS, Ledger
from nasgrow.search.storage import RETRIES
from nasgrow.training import loop
from tests.cli.test_run_commands import call
from tests.engines.test_survival import ledger_of
from tests.search.studies import begin_study, write_study
from tests.search.test_objective import nothing

PAGE = Path(__file__).parents[2] / "docs/clusters.md"


def script() -> str:
    """The SLURM script of the page."""
    found = re.search(r"```sh\n(#!/bin/bash\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_tasks_of_an_array_begin_a_study_together_and_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    baselines = {"shares": [], "learning_rates": [0.006]}
    study = write_study(tmp_path, trials=6, baselines=baselines, pruner={"kind": "none"})
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(PAGE.parents[1]),
        "NASGROW_CACHE": str(tmp_path / "cache"),
        "NASGROW_STORAGE": url,
        "STUDY": study.name,
    }
    Path("workers.sh").write_text(script(), encoding="utf-8")
    tasks = [
        subprocess.Popen(
            ["bash", "workers.sh"],
            env={**environment, "SLURM_ARRAY_TASK_ID": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(3)
    ]
    said = [task.communicate(timeout=300)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0, 0], said

    monkeypatch.setenv("NASGROW_STORAGE", url)
    ledger = ledger_of(study)
    trials = [trial for kind in KINDS for trial in ledger.optuna_study(kind).trials]
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 8
    assert not (tmp_path / "runs/tiny/study.db").exists(), "the database is the one that was named"


def test_a_worker_that_joins_has_as_many_threads_as_those_of_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("nasgrow.search.config.core_count", lambda: 6)
    begun: list[int] = []

    def work(*_: object, **__: object) -> bool:
        begun.append(torch.get_num_threads())
        return True

    monkeypatch.setattr(worker, "_join", lambda study, folder: None)
    monkeypatch.setattr(worker, "work", work)
    before = torch.get_num_threads()
    try:
        assert worker.run(write_study(tmp_path, workers=2), 0, None, False) == 0
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        torch.set_num_threads(2)
        assert worker.run(write_study(tmp_path, workers=2), 0, None, False) == 0
    finally:
        torch.set_num_threads(before)
    assert begun == [3, 2]


def once(at: Worker, folder: Path) -> str:
    return at.once(KINDS, board=Board(folder, 0), attach=nothing, warn=print, stop=lambda: False)


def order(home: Path, folder: Path, log: Path, *, gpu: bool) -> dict[str, object]:
    """What a task is told."""
    where = {"home": str(home), "folder": str(folder.absolute()), "log": str(log)}
    return {**where, "index": 0, "confirm": False, "threads": 1, "environment": {}, "gpu": gpu}


def test_a_database_that_is_a_file_serves_the_workers_of_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    study = write_study(tmp_path)
    _, folder, ledger = begin_study(study)
    with monkeypatch.context() as there:
        there.setattr(standing, "machine_names", lambda: {"another"})
        board = Board(folder, 0)
        board.write(Standing(0, "search", 3, "no growth", 1, 1, 0.5, 2.0, None), now=True)
    assert call(monkeypatch, "worker", study.name) == 2
    assert capfd.readouterr().err == (
        "nasgrow: runs/tiny: another machine is at work on this study, and SQLite serves one: "
        "give a database server's URL as its storage\n"
    )
    monkeypatch.setattr(Ledger, "claim", lambda *_: None)
    at = Worker(ledger, folder, torch.device("cpu"))
    with pytest.raises(ValueError, match="SQLite serves one"):
        once(at, folder)
    with monkeypatch.context() as served:
        served.setattr("nasgrow.engines.worker.where", lambda storage: "postgresql://host/name")
        assert once(at, folder) == "nothing"
    board.clear()
    assert once(at, folder) == "nothing"


def test_a_trial_that_runs_out_of_memory_is_tried_again_as_after_a_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    baselines = {"shares": [], "start": False, "learning_rates": [0.006]}
    _, folder, ledger = begin_study(write_study(tmp_path, baselines=baselines))
    at = Worker(ledger, folder, torch.device("cpu"))
    full = [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has none."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory\nat frame 0"),
        torch.OutOfMemoryError("CUDA out of memory."),
    ]
    said = [
        "CUDA out of memory. Tried to allocate 2 GiB): it is tried again",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`): it is tried again",
        "[enforce fail] DefaultCPUAllocator: can't allocate memory): it is tried again",
        "CUDA out of memory): it is given up",
    ]
    assert len(full) == RETRIES + 1

    def backward(*_: object) -> None:
        raise full.pop(0)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "backward", backward)
        for number, told in enumerate(said):
            with pytest.raises(OutOfMemory) as caught:
                once(at, folder)
            assert str(caught.value).startswith(f"baseline {number} ran out of memory ({told}; smaller ")
        full.append(RuntimeError("another mistake"))
        with pytest.raises(RuntimeError, match="another mistake"):
            once(at, folder)
    assert [one.state for one in ledger.optuna_study("baseline").trials] == [TrialState.FAIL] * len(said)
    assert once(at, folder) == "trained"
    assert ledger.trials("search")[0].state == TrialState.COMPLETE, "what failed otherwise was given back"


def test_who_runs_out_of_memory_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    study = write_study(tmp_path)
    _, folder, _ = begin_study(study)

    def full(*_: object, **__: object) -> str:
        raise OutOfMemory("search 3 ran out of memory")

    monkeypatch.setattr(Worker, "once", full)
    assert call(monkeypatch, "worker", study.name) == FULL
    assert capfd.readouterr().err == "warning: search 3 ran out of memory\n"
    log = tmp_path / "log"
    told = worker.task(order(tmp_path, folder, log, gpu=False))
    assert told == {"did": "died", "line": "search 3 ran out of memory"}
    assert log.read_text(encoding="utf-8") == "warning: search 3 ran out of memory\n"


def test_a_task_trains_on_a_gpu_only_if_one_is_its(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    _, folder, _ = begin_study(write_study(tmp_path))
    devices: list[torch.device] = []

    class Idle:
        def __init__(self, ledger: object, folder: Path, device: torch.device) -> None:
            devices.append(device)

        def once(self, *_: object, **__: object) -> str:
            return "nothing"

    monkeypatch.setattr(worker, "Worker", Idle)
    for gpu in (False, True):
        assert worker.task(order(tmp_path, folder, tmp_path / "log", gpu=gpu)) == {"did": "nothing"}
    assert devices == [torch.device("cpu"), torch.device("cuda", 0)]
