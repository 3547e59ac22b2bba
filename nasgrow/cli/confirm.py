"""``nasgrow confirm``: retrain the best schedules and baselines with fresh seeds, for the test split."""

from __future__ import annotations

import math
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
from nasgrow.study.baselines import size_of, title_of
from nasgrow.study.best import Trials
from nasgrow.study.study import ResolvedStudy, open_study
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
        console.print(as_table(study, known.trials, chosen))
        console.print(next_step(path, known), soft_wrap=True)
    return 1 if failed(confirmed) else 0


def as_table(study: ResolvedStudy, trials: Trials, chosen: Sequence[TrialRecord]) -> Table:
    """Return a table of the test losses of the candidates.

    Schedules come first, then fixed shapes, both by loss; then fixed shapes under other budgets, by
    shape and budget.
    """
    confirmed = {record.label: list[TrialRecord]() for record in chosen}
    for one in trials["confirmation"].values():
        confirmed.setdefault(one.name or "", []).append(one)
    losses = {label: [loss for one in own for loss in one.test] for label, own in confirmed.items()}

    def place(record: TrialRecord) -> tuple[bool, bool, str, float]:
        size = size_of(study, record)
        if size.times != 1:
            return True, size.shape != study.final, str(size.shape), size.times
        return False, not record.schedule["events"], "", fmean(losses[record.label] or [math.inf])

    table = plain_table(("seeds", "test loss", "deviation"), first="candidate", last="what")
    for record in sorted(chosen, key=place):
        own = losses[record.label]
        missing = "diverged" if any(one.status == "diverged" for one in confirmed[record.label]) else "failed"
        table.add_row(
            record.label,
            str(len(own)),
            f"{fmean(own):.4f}" if own else missing,
            f"{stdev(own):.4f}" if len(own) > 1 else "",
            one_line(title_of(study, trials, record)),
        )
    return table
