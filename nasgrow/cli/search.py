"""``nasgrow search``: from a study file to an answer; ``nasgrow status``: where that stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.live import Live

from nasgrow.cli.signals import asked_to_stop
from nasgrow.cli.views import counts, study_view
from nasgrow.data import prepare
from nasgrow.engines.local import Crew, gpu_count
from nasgrow.engines.standing import Standing, standings
from nasgrow.search.config import worker_count
from nasgrow.search.ledger import Ledger
from nasgrow.search.life import begin, reopen
from nasgrow.search.study import open_study
from nasgrow.search.summary import Summary, answer, summarise
from nasgrow.training.files import to_json

PIPED_WIDTH = 140


def run(path: Path, workers: int | None, trials: int | None, as_json: bool) -> int:
    """Run a study until it has ended; return the exit code."""
    study, folder = open_study(path, trials=trials)
    console = _console(to_stderr=as_json)
    corpus = prepare(
        study.config.data, report=lambda line: None if as_json else console.print(line, style="dim")
    )
    ledger = begin(study, folder, corpus.fingerprint)
    crew = Crew(folder, worker_count(study.config, workers, gpu_count()))
    if not ledger.ended():
        if not as_json:
            many = f"{crew.size} worker{'s' if crew.size > 1 else ''}"
            console.print(f"{folder}: {many}; Ctrl-C saves and stops", style="dim", soft_wrap=True)
        with _watching(console, ledger, crew, as_json) as look, asked_to_stop() as stop:
            crew.start()
            whole = crew.watch(lambda: _ended(ledger), look, stop)
        if not whole:
            console.print("stopped and saved; the same command goes on", soft_wrap=True)
            return 130
    summary = summarise(ledger)
    if as_json:
        print(to_json({"kind": "summary", **asdict(summary)}))
    else:
        _conclude(console, summary, [], crew.size)
    return 0


def status(path: Path, as_json: bool) -> int:
    """Show where a study stands; return the exit code."""
    study, folder = open_study(path)
    summary, workers = summarise(reopen(study, folder)), list(standings(folder))
    if as_json:
        print(to_json({**asdict(summary), "workers": [asdict(standing) for standing in workers]}, indent=2))
    else:
        _conclude(_console(), summary, workers, len(workers))
    return 0


def _console(*, to_stderr: bool = False) -> Console:
    """A console that does not squeeze tables into 80 columns where nobody reads them on a terminal."""
    console = Console(stderr=to_stderr, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def _conclude(console: Console, summary: Summary, workers: Sequence[Standing], processes: int) -> None:
    console.print(study_view(summary, workers, processes))
    for line in answer(summary):
        console.print(line, soft_wrap=True)


def _ended(ledger: Ledger) -> int:
    summary = summarise(ledger)
    return summary.ended + sum(baseline.tried for baseline in summary.baselines)


@contextmanager
def _watching(console: Console, ledger: Ledger, crew: Crew, as_json: bool) -> Iterator[Callable[[], None]]:
    """How progress is shown: live on a terminal, else a line whenever a trial has ended."""
    if console.is_terminal and not as_json:
        with Live(console=console, transient=True, auto_refresh=False) as live:

            def draw() -> None:
                view = study_view(summarise(ledger), list(standings(crew.folder)), crew.size)
                live.update(view, refresh=True)

            yield draw
        return
    seen = -1

    def tell() -> None:
        nonlocal seen
        summary = summarise(ledger)
        if (done := summary.ended + sum(baseline.tried for baseline in summary.baselines)) != seen:
            seen = done
            if as_json:
                print(to_json({"kind": "progress", **asdict(summary)}), flush=True)
            else:
                console.print(_line(summary), soft_wrap=True)

    yield tell


def _line(summary: Summary) -> str:
    tried = sum(baseline.tried for baseline in summary.baselines)
    best = "" if summary.best is None else f", best loss {summary.best.loss:.4f}"
    fixed = "" if summary.best_fixed is None else f", best fixed size {summary.best_fixed.loss:.4f}"
    return f"{counts(summary)}, {tried} baseline runs{best}{fixed}"
