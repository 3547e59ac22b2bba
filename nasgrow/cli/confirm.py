"""``nasgrow confirm``: retrain the best schedules and baselines with fresh seeds, for the test split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev

from rich.table import Table

from nasgrow.cli.console import plain_table, study_console
from nasgrow.cli.live_view import STOPPED, observing
from nasgrow.cli.next_steps import next_step
from nasgrow.cli.views import one_line
from nasgrow.experiments.search import Workplace, confirm
from nasgrow.study.study import open_study
from nasgrow.study.study_folder import read_study
from nasgrow.study.summary import failed
from nasgrow.study.trials import TrialRecord
from nasgrow.training.atomic_files import to_json


def run(
    path: Path, top: int, each: str | None, seeds: int, place: Workplace, as_json: bool, quiet: bool = False
) -> int:
    """Train the best schedules and fixed shapes of a study again, and print their test losses.

    Return the exit code: 0, 1 if a confirmation failed because its workers kept dying, or
    ``STOPPED`` if the user stopped it.
    """
    study, folder = open_study(path)
    read_study(folder)  # raises UserError without a study
    console = study_console(to_stderr=as_json)
    with observing(console, as_json, quiet) as observer:
        whole, chosen = confirm(study, folder, place, observer, top=top, each=each, seeds=seeds)
    if not whole:
        console.print("stopped and saved; the same command resumes", soft_wrap=True)
        return STOPPED
    known = read_study(folder)
    confirmed = list(known.trials["confirmation"].values())
    if as_json:
        print(to_json({"kind": "confirmations", "confirmations": [asdict(record) for record in confirmed]}))
    else:
        console.print(_table(chosen, confirmed))
        console.print(next_step(path, known), soft_wrap=True)
    return 1 if failed(confirmed) else 0


def _table(chosen: Sequence[TrialRecord], confirmed: Sequence[TrialRecord]) -> Table:
    table = plain_table(("seeds", "test loss", "deviation"), first="candidate", last="what")
    for record in chosen:
        own = [other for other in confirmed if other.name == record.label]
        losses = [loss for other in own for loss in other.test]
        missing = "diverged" if any(other.status == "diverged" for other in own) else "failed"
        table.add_row(
            record.label,
            str(len(losses)),
            f"{fmean(losses):.4f}" if losses else missing,
            f"{stdev(losses):.4f}" if len(losses) > 1 else "",
            one_line(record.title),
        )
    return table
