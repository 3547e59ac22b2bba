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
from nasgrow.engines.standing import Board, Standing
from nasgrow.engines.worker import Worker
from nasgrow.search.course import asked
from nasgrow.search.ledger import FAILURES, KINDS
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


def test_a_database_that_is_a_file_serves_the_workers_of_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    study = write_study(tmp_path)
    _, folder, _ = begin_study(study)
    with monkeypatch.context() as there:
        there.setattr(standing, "this_machine", lambda: "another")
        board = Board(folder, 0)
        board.write(Standing(0, "search", 3, "no growth", 1, 1, 0.5, 2.0, None), now=True)
    monkeypatch.setattr(worker, "work", lambda *_, **__: True)
    assert call(monkeypatch, "worker", study.name) == 2
    assert capfd.readouterr().err == (
        "nasgrow: runs/tiny: another machine is at work on this study, and SQLite serves one: "
        "give a database server's URL as its storage\n"
    )
    monkeypatch.setattr(worker, "reopen", lambda *_: None)
    with monkeypatch.context() as served:
        served.setenv("NASGROW_STORAGE", "postgresql://user@host/name")
        assert call(monkeypatch, "worker", study.name) == 0
    board.clear()
    assert call(monkeypatch, "worker", study.name) == 0


def test_a_trial_that_runs_out_of_memory_is_counted_out_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    baselines = {"shares": [], "start": False, "learning_rates": [0.006]}
    _, folder, ledger = begin_study(write_study(tmp_path, baselines=baselines))
    said: list[str] = []

    def once(at: Worker) -> str:
        return at.once(KINDS, board=Board(folder, 0), attach=nothing, warn=said.append, stop=lambda: False)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has none.")

    at = Worker(ledger, folder, torch.device("cpu"))
    with monkeypatch.context() as patch:
        patch.setattr(loop, "backward", full)
        assert once(at) == "trained"
        assert said == ["baseline 0: CUDA out of memory. Tried to allocate 2 GiB"]
    first, *others = ledger.optuna_study("baseline").trials
    assert (first.state, first.user_attrs["status"]) == (TrialState.FAIL, "out of memory")
    assert others[-1].state == TrialState.WAITING, "it is offered again"
    while ledger.trials("search")[0].state == TrialState.WAITING:
        once(at)
    ended = ledger.trials("baseline")
    assert [asked(first), "finished"] in [[one.params, one.user_attrs["status"]] for one in ended]
    assert {one.state for one in ended} == {TrialState.COMPLETE}

    monkeypatch.setattr(loop, "backward", full)
    for _ in range(FAILURES - 1):
        assert once(at) == "trained"
    with pytest.raises(
        ValueError, match=r"^search \d+: CUDA out .* 2 GiB; trials keep running out of memory"
    ):
        once(at)
    assert TrialState.RUNNING not in {one.state for one in ledger.trials("search")}


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
    order = {"home": str(tmp_path), "folder": str(folder.absolute()), "log": str(tmp_path / "log")}
    for gpu in (False, True):
        own = {"index": 0, "confirm": False, "threads": 1, "environment": {}, "gpu": gpu}
        told = worker.task({**order, **own})
        assert told == {"did": "nothing"}
    assert devices == [torch.device("cpu"), torch.device("cuda", 0)]
