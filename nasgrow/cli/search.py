"""``nasgrow search``: from a study file to an answer; ``nasgrow status``: where that stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from nasgrow.cli.launch import Engine, launch, study_console
from nasgrow.cli.views import study_view
from nasgrow.data import prepare
from nasgrow.engines.crew import STOPPED
from nasgrow.engines.standing import Standing, standings
from nasgrow.search.life import begin, check, reopen
from nasgrow.search.study import open_study
from nasgrow.search.summary import Summary, answer, summarise
from nasgrow.strict import with_prefix
from nasgrow.training.files import to_json


def run(path: Path, engine: Engine, trials: int | None, as_json: bool) -> int:
    """Run a study until it has ended; return the exit code."""
    engine.check()
    study, folder = open_study(path, trials=trials)
    if study.config.trunks is not None:
        with_prefix(str(path), study.config.trunks.check)
    check(study, folder)
    console = study_console(to_stderr=as_json)
    corpus = prepare(
        study.config.data, report=lambda line: None if as_json else console.print(line, style="dim")
    )
    ledger = begin(study, folder, corpus.fingerprint)
    if not ledger.ended() and not launch(console, ledger, folder, engine, as_json):
        return STOPPED
    summary = summarise(ledger)
    if as_json:
        print(to_json({"kind": "summary", **asdict(summary)}))
    else:
        _conclude(console, summary, [])
    return 0


def status(path: Path, as_json: bool) -> int:
    """Show where a study stands; return the exit code."""
    study, folder = open_study(path)
    summary, workers = summarise(reopen(study, folder)), standings(folder)
    if as_json:
        print(to_json({**asdict(summary), "workers": [asdict(standing) for standing in workers]}, indent=2))
    else:
        _conclude(study_console(), summary, workers)
    return 0


def _conclude(console: Console, summary: Summary, workers: Sequence[Standing]) -> None:
    console.print(study_view(summary, workers, len(workers)))
    for line in answer(summary):
        console.print(line, soft_wrap=True)
