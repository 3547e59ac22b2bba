"""A run's folder: where it was trained, and who holds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nasgrow.data import Corpus
from nasgrow.training import folder as folders
from nasgrow.training.folder import open_folder, read_run
from nasgrow.training.loop import train
from nasgrow.training.records import DESCRIPTION, Result
from nasgrow.training.run import Run
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
