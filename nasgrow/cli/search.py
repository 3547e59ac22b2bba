"""``nasgrow search``: run a study; ``nasgrow status``: show its state."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from nasgrow.cli.console import print_sentences, study_console
from nasgrow.cli.live_view import STOPPED, observing
from nasgrow.cli.next_steps import next_step
from nasgrow.cli.views import study_view
from nasgrow.experiments.search import Workplace, search
from nasgrow.study.study import open_study
from nasgrow.study.study_folder import read_study
from nasgrow.study.summary import answer, missing_lines, summarise
from nasgrow.training.atomic_files import to_json


def run(path: Path, place: Workplace, trials: int | None, as_json: bool, quiet: bool = False) -> int:
    """Run or resume a study until it has ended or is stopped; return the exit code.

    The code is 0 if the study has all results, 1 if some are missing, and ``STOPPED`` if it was stopped.
    """
    study, folder = open_study(path, trials=trials)
    console = study_console(to_stderr=as_json)
    with observing(console, as_json, quiet) as observer:
        whole = search(study, folder, place, observer)
    if not whole:
        console.print("stopped and saved; the same command resumes", soft_wrap=True)
        return STOPPED
    known = read_study(folder)
    summary = summarise(study, known.trials, ended=True)
    if as_json:
        print(to_json({"kind": "summary", **asdict(summary)}))
    else:
        console.print(study_view(summary, [], 1))
        print_sentences(console, [*answer(summary), *missing_lines(summary)])
        console.print(next_step(path, known), soft_wrap=True)  # a command, to be copied
    return 1 if missing_lines(summary) else 0


def status(path: Path, as_json: bool) -> int:
    """Show the state of a study, as a table or JSON; return 0."""
    study, folder = open_study(path)
    known = read_study(folder)
    summary = summarise(study, known.trials, ended=known.searched, **known.planned)
    if as_json:
        print(to_json({**asdict(summary), "state": known.state, "workers": known.running}, indent=2))
        return 0
    console = study_console()
    console.print(study_view(summary, known.running, max(1, len(known.running))))
    print_sentences(console, [*answer(summary), *missing_lines(summary)])
    if known.state != "running":
        console.print(next_step(path, known), soft_wrap=True)  # a command, to be copied
    return 0
