"""Show a study while it runs: a live view on a terminal, else a line for each trial that ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.live import Live

from nasgrow.cli.signals import asked_to_stop
from nasgrow.cli.views import progress_line, study_view
from nasgrow.driver import Driver
from nasgrow.experiments.search import Observer
from nasgrow.report.curve import draw_curve
from nasgrow.training.atomic_files import to_json

STOPPED = 130
"""The exit code of a command that the user stopped."""


@contextmanager
def observing(console: Console, as_json: bool, quiet: bool = False) -> Iterator[Observer]:
    """Show the progress of a study that runs in the body; if ``quiet``, its warnings only.

    With ``as_json``, progress goes to standard output as JSON lines. On Ctrl-C or SIGTERM the
    observer asks the driver to stop, so that workers can save.
    """

    def begun(folder: Path, workers: int) -> None:
        if not (as_json or quiet):
            many = f"{workers} worker{'s' if workers != 1 else ''}"
            console.print(f"{folder}: starting {many}; Ctrl-C saves and stops", style="dim", soft_wrap=True)

    warned: set[str] = set()

    def warn(message: str) -> None:
        if message not in warned:
            warned.add(message)
            console.print(f"warning: {message}", style="yellow", soft_wrap=True)

    def note(line: str) -> None:
        if not (as_json or quiet):
            console.print(line, style="dim")

    with _watching(console, as_json, quiet) as watch, asked_to_stop() as stop:
        yield Observer(note, begun, watch, warn, stop, draw_curve)


@contextmanager
def _watching(console: Console, as_json: bool, quiet: bool) -> Iterator[Callable[[Driver], None]]:
    if quiet:
        yield lambda driver: None
        return
    if console.is_terminal and not as_json:
        with Live(console=console, transient=True, auto_refresh=False) as live:

            def draw(driver: Driver) -> None:
                view = study_view(
                    driver.summary(),
                    [one.to_json() for one in driver.running.values()],
                    driver.executor.slots,
                )
                live.update(view, refresh=True)

            yield draw
        return
    seen = 0

    def tell(driver: Driver) -> None:
        nonlocal seen
        summary = driver.summary()
        if summary.counts.done != seen:
            seen = summary.counts.done
            if as_json:
                print(to_json({"kind": "progress", **asdict(summary)}), flush=True)
            else:
                console.print(progress_line(summary, driver.executor.slots), soft_wrap=True)

    yield tell
