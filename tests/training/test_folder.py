"""A run's folder: where it was trained, and who holds it."""

from __future__ import annotations

import itertools
import json
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from nasgrow.data import Corpus
from nasgrow.training import folder as folders
from nasgrow.training.folder import open_folder
from nasgrow.training.loop import train
from nasgrow.training.records import DESCRIPTION, Result, read_run
from nasgrow.training.run import Run
from tests.processes import forks
from tests.training.runs import make_run

CPU = torch.device("cpu")


def described(folder: Path) -> dict[str, Any]:
    description: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    return description


def open_on(
    monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], folder: Path, run: Run, corpus: Corpus
) -> Result | None:
    """Open a folder on a machine that describes itself so."""
    monkeypatch.setattr(folders, "describe_machine", lambda device: machine)
    with open_folder(folder, run, corpus.tokenizer, CPU) as result:
        return result


def test_each_machine_that_takes_up_a_run_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, corpus = make_run(tmp_path)
    one: dict[str, Any] = {"device": "small", "threads": 2, "versions": {"torch": "1"}}
    two: dict[str, Any] = {**one, "versions": {"torch": "2"}}
    for machine in (one, one, two, two, one):
        assert open_on(monkeypatch, machine, tmp_path / "run", run, corpus) is None
    description = described(tmp_path / "run")
    assert description["machine"] == one
    assert description["resumed_on"] == [two, one]
    assert description["identity"] == run.identity == read_run(tmp_path / "run").identity
    assert description["run"] == run.describe()


def test_opening_a_run_that_has_ended_records_no_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, corpus = make_run(tmp_path, budget={"flops": 1e7})
    with open_folder(tmp_path / "run", run, corpus.tokenizer, CPU):
        ended = train(run, corpus, tmp_path / "run", device=CPU)
    before = described(tmp_path / "run")
    assert open_on(monkeypatch, {"device": "another"}, tmp_path / "run", run, corpus) == ended
    assert described(tmp_path / "run") == before


def train_when_told(where: Path, holding: Event, go: Event) -> None:
    """Hold the folder of a run, and train it once told to."""
    run, corpus = make_run(where, budget={"flops": 1e7})
    with open_folder(where / "run", run, corpus.tokenizer, CPU):
        holding.set()
        assert go.wait(60)
        train(run, corpus, where / "run", device=CPU)


def test_who_waits_for_another_process_gets_its_result(tmp_path: Path) -> None:
    holding, go = forks().Event(), forks().Event()
    process = forks().Process(target=train_when_told, args=(tmp_path, holding, go))
    process.start()
    try:
        assert holding.wait(60)
        run, corpus = make_run(tmp_path, budget={"flops": 1e7})
        asked = itertools.count(1)

        def wait() -> bool:
            if next(asked) == 2:
                go.set()
            return process.is_alive()

        with open_folder(tmp_path / "run", run, corpus.tokenizer, CPU, wait=wait) as result:
            assert result is not None
            assert result.status == "finished"
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("patience", [None, 0, 3])
def test_who_does_not_wait_or_no_longer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: int | None
) -> None:
    monkeypatch.setattr(folders, "FOLDER_POLL_SECONDS", 0.01)
    run, corpus = make_run(tmp_path)
    (tmp_path / "run").mkdir()
    answers = [True] * (patience or 0) + [False]
    wait = None if patience is None else lambda: answers.pop(0)
    with (
        FileLock(tmp_path / "run" / ".lock"),
        pytest.raises(ValueError, match="another process is training this run"),
        open_folder(tmp_path / "run", run, corpus.tokenizer, CPU, wait=wait),
    ):
        pass
    assert len(answers) == (1 if patience is None else 0)
    assert not (tmp_path / "run" / DESCRIPTION).exists()
