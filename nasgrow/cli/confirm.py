"""``nasgrow confirm``: the best schedules and baselines again, with fresh seeds, on the test split."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev

from rich.box import SIMPLE_HEAD
from rich.table import Table

from nasgrow.cli.launch import Engine, launch, study_console
from nasgrow.cli.views import one_line
from nasgrow.engines.crew import STOPPED
from nasgrow.search.confirm import candidate_name, candidates, fresh_seeds
from nasgrow.search.ledger import Kind
from nasgrow.search.life import reopen
from nasgrow.search.study import open_study
from nasgrow.search.trials import TrialRecord, read_trials
from nasgrow.training.files import to_json


def run(path: Path, top: int, each: str | None, seeds: int, engine: Engine, as_json: bool) -> int:
    """Confirm a study; return the exit code."""
    study, folder = open_study(path)
    ledger = reopen(study, folder)
    chosen = candidates(read_trials(folder), top, each)
    if not chosen:
        raise ValueError(f"{folder}: no trial has ended with a loss, so there is nothing to confirm")
    ledger.queue_confirmations([candidate_name(record) for record in chosen], fresh_seeds(study, seeds))
    console = study_console(to_stderr=as_json)
    kinds: tuple[Kind, ...] = ("confirmation",)
    if not ledger.ended(kinds) and not launch(console, ledger, folder, engine, as_json, kinds):
        return STOPPED
    confirmed = [record for record in read_trials(folder) if record.kind == "confirmation"]
    if as_json:
        print(to_json({"kind": "confirmations", "confirmations": [asdict(record) for record in confirmed]}))
    else:
        console.print(_table(chosen, confirmed))
    return 0


def _table(chosen: list[TrialRecord], confirmed: list[TrialRecord]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("candidate", no_wrap=True)
    for heading in ("seeds", "test loss", "deviation"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("what")
    for record in chosen:
        name = candidate_name(record)
        losses = [loss for other in confirmed if other.name == name for loss in other.test]
        table.add_row(
            name,
            str(len(losses)),
            f"{fmean(losses):.4f}" if losses else "diverged",
            f"{stdev(losses):.4f}" if len(losses) > 1 else "",
            one_line(record.words if record.kind == "search" else record.name or ""),
        )
    return table
