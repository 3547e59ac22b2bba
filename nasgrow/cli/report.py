"""``nasgrow report``: write the report of a study from its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from nasgrow.cli.console import print_sentences, study_console
from nasgrow.report.write import write_report
from nasgrow.study.study import recorded_study


def run(path: Path, to: Path | None, quiet: bool = False) -> int:
    """Write the report of a study into ``to``, by default ``reports/NAME``; return 0."""
    study, folder = recorded_study(path)
    to = to or Path("reports") / study.config.name
    with reading(quiet) as watch:
        verdict = write_report(study, folder, to, watch)
    print_sentences(study_console(), [verdict.headline])
    print(to / "index.html")
    return 0


@contextmanager
def reading(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar of the runs read, on a terminal and unless ``quiet``.

    Yields:
        A function to call with the number of runs read and the number of all runs.
    """
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    columns = (TextColumn("reading runs"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
