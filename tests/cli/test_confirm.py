"""The table of a confirmation, and the names of the runs that it trains."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nasgrow.cli.confirm import as_table
from nasgrow.driver import Driver
from nasgrow.experiments.search import Workplace, confirm
from nasgrow.study.config import load_study
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TRIAL_KINDS, Kind, TrialRecord
from tests.executors.inline import InlineExecutor
from tests.study.records import make_record
from tests.study.studies import FINAL, Quiet, run_study, write_study

NARROW: dict[str, Any] = {"start": {**FINAL, "mlp": 16}, "events": []}


def printed(study: ResolvedStudy, chosen: list[TrialRecord], losses: dict[str, float | None]) -> list[str]:
    """The rows of the table, without the heading."""
    trials: dict[Kind, dict[int, TrialRecord]] = {
        kind: {one.number: one for one in chosen if one.kind == kind} for kind in TRIAL_KINDS
    }
    trials["confirmation"] = {
        number: make_record("confirmation", number, loss, name=name, test=[] if loss is None else [loss])
        for number, (name, loss) in enumerate(losses.items())
    }
    console = Console(file=io.StringIO(), width=100)
    console.print(as_table(study, trials, chosen))
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().strip().splitlines()[2:]]


def test_contenders_at_the_studys_budget_come_first_and_are_named_as_in_the_search(tmp_path: Path) -> None:
    study = ResolvedStudy.resolve(load_study(write_study(tmp_path)), "tiny.yaml")
    chosen = [
        make_record("search", 2, 2.0),
        make_record("search", 3, 2.1, name="known"),
        make_record("fixed", 4, 2.2, schedule=NARROW),
        make_record("baseline", 7, 1.9, name="fixed 4, 2x budget", schedule=NARROW),
        make_record("baseline", 5, 1.8, name="final, 10x budget"),
        make_record("baseline", 6, 2.9, name="final, 2x budget"),
        make_record("baseline", 0, 2.3, name="final"),
    ]
    losses = {
        "search 2": 1.7,
        "search 3": 1.6,
        "fixed 4": None,
        "baseline 7": 1.2,
        "baseline 5": 1.1,
        "baseline 6": 1.3,
        "baseline 0": 1.9,
    }
    assert printed(study, chosen, losses) == [
        "search 3 1 1.6000 known",
        "search 2 1 1.7000 x2 layers at 30%",
        "baseline 0 1 1.9000 final",
        "fixed 4 0 diverged mlp 16",
        "baseline 6 1 1.3000 final, 2x budget",
        "baseline 5 1 1.1000 final, 10x budget",
        "baseline 7 1 1.2000 mlp 16, 2x budget",
    ]


def test_a_run_that_is_confirmed_is_shown_with_the_name_and_budget_of_its_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("nasgrow.experiments.search.LocalExecutor", InlineExecutor)
    path = write_study(tmp_path, trials=2, baselines={"budgets": [0.5], "compute": 1})
    study, folder, _ = run_study(path)
    shown: set[str] = set()

    def watch(driver: Driver) -> None:
        every = [one.to_json() for one in driver.running.values()]
        shown.update(one["schedule"] for one in every if one["kind"] == "confirmation")

    confirm(study, folder, Workplace(workers=1), Quiet(watch=watch).observer(), top=1, each=None, seeds=1)
    assert {"final", "final, 0.5x budget"} <= shown
    assert not [title for title in shown if title.startswith("h=")]
