"""Starting workers for a study, and watching them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.live import Live

from nasgrow.cli.signals import asked_to_stop
from nasgrow.cli.views import progress_line, study_view
from nasgrow.engines.crew import Crew
from nasgrow.engines.local import LocalCrew, gpu_count
from nasgrow.engines.standing import standings, warnings_in
from nasgrow.search.config import StudyConfig, thread_count, worker_count
from nasgrow.search.ledger import KINDS, Kind, Ledger
from nasgrow.search.summary import summarise
from nasgrow.training.files import to_json

PIPED_WIDTH = 140

ENVIRONMENT = "NASGROW_"
"""Variables of these names are told to workers on other machines."""


@dataclass(frozen=True)
class Engine:
    """Where runs are to execute: the engine, the cluster's address, how many trials at once."""

    kind: Literal["local", "ray"] = "local"
    address: str | None = None
    workers: int | None = None

    def check(self) -> None:
        """Raise ``ValueError`` if what was asked for does not go together."""
        if self.kind == "local" and self.address is not None:
            raise ValueError("--address: is a Ray cluster's: give --engine ray too")

    def hire(self, ledger: Ledger, folder: Path, kinds: Sequence[Kind]) -> Crew:
        """The crew that is to train these kinds of trials."""
        config = ledger.study.config
        confirm = "confirmation" in kinds
        self.check()
        if self.kind == "local":
            size = worker_count(config, self.workers, gpu_count())
            return LocalCrew(folder, size, config.resources, ("--confirm",) if confirm else ())
        from nasgrow.cli.worker import task
        from nasgrow.engines.ray import RayCrew, connect

        connect(self.address)
        told = {name: value for name, value in os.environ.items() if name.startswith(ENVIRONMENT)}
        order = {
            "home": str(Path.cwd()),
            "folder": str(folder.absolute()),
            "confirm": confirm,
            "threads": self._threads(config),
            "environment": told,
        }
        most = self.workers or config.workers
        return RayCrew(ledger, folder, kinds, config.resources, task, order, most, self._in_a_cluster)

    @property
    def _in_a_cluster(self) -> bool:
        """Whether Ray is there already, and not started here."""
        from nasgrow.engines.ray import LOCAL

        return self.address not in (None, LOCAL)

    def _threads(self, config: StudyConfig) -> int:
        """Of a Ray task: on this machine those of a local worker, whose bits depend on their number.

        On a cluster no node's cores count, so that all nodes give the same bits.
        """
        import torch

        if self._in_a_cluster:
            return max(1, int(config.resources.cpus or 1))
        if "OMP_NUM_THREADS" in os.environ:
            return torch.get_num_threads()
        return thread_count(config.resources, worker_count(config, self.workers, gpu_count()))


def study_console(*, to_stderr: bool = False) -> Console:
    """A console that does not squeeze tables into 80 columns where nobody reads them on a terminal."""
    console = Console(stderr=to_stderr, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def launch(
    console: Console,
    ledger: Ledger,
    folder: Path,
    engine: Engine,
    as_json: bool,
    kinds: Sequence[Kind] = KINDS,
) -> bool:
    """Let a crew work until nothing is left, showing where it stands; False if it was stopped before."""
    crew = engine.hire(ledger, folder, kinds)
    if not as_json:
        many = f"{crew.size} worker{'s' if crew.size != 1 else ''}"
        console.print(f"{crew.folder}: {many}; Ctrl-C saves and stops", style="dim", soft_wrap=True)
    told: set[str] = set()
    with _watching(console, ledger, crew, as_json) as show, asked_to_stop() as stop:

        def look() -> None:
            ledger.release_stale()
            for line in warnings_in(crew.folder):
                if line not in told:
                    told.add(line)
                    console.print(line, style="yellow", soft_wrap=True)
            show()

        crew.start()
        whole = crew.watch(lambda: summarise(ledger).done, look, stop)
    if whole and not ledger.ended(kinds):
        raise ValueError(f"{crew.folder}: the workers ended before the study had; the same command goes on")
    if not whole:
        console.print("stopped and saved; the same command goes on", soft_wrap=True)
    return whole


@contextmanager
def _watching(console: Console, ledger: Ledger, crew: Crew, as_json: bool) -> Iterator[Callable[[], None]]:
    """How progress is shown: live on a terminal, else a line whenever a trial has ended."""
    if console.is_terminal and not as_json:
        with Live(console=console, transient=True, auto_refresh=False) as live:

            def draw() -> None:
                view = study_view(summarise(ledger), standings(crew.folder), crew.size)
                live.update(view, refresh=True)

            yield draw
        return
    seen = -1

    def tell() -> None:
        nonlocal seen
        summary = summarise(ledger)
        if summary.done != seen:
            seen = summary.done
            if as_json:
                print(to_json({"kind": "progress", **asdict(summary)}), flush=True)
            else:
                console.print(progress_line(summary), soft_wrap=True)

    yield tell
