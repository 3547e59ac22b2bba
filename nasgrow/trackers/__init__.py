"""Runs in trackers, written from their records: at once, or while they train.

Each tracker is a module of this package, which is imported when it is asked for. It writes files, and
sends nothing anywhere, unless its own settings name a server.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from nasgrow.errors import UserError
from nasgrow.training.records import DESCRIPTION, METRICS, read_metrics, read_record

SERIES = {
    "train": ("loss", "learning_rate", "gradient", "tokens_per_second"),
    "evaluation": ("validation",),
    "event": ("loss_before", "loss_after", "change", "new_gradient"),
}
"""What is shown of each kind of record; all of it over steps."""

UPDATE_SECONDS = 2.0
"""Time between two updates of a run that trains."""

PLACES = ("tokens", "charged", "fraction")
"""Shown beside the loss, so that a curve can be read over them."""

TaggedValue = tuple[str, float, int]
"""Tag, value and step."""


class RunWriter(Protocol):
    """One run in a tracker."""

    def write(self, scalars: list[TaggedValue]) -> None:
        """Write scalars, in the order of their steps, so that the tracker can show them."""

    def close(self) -> None:
        """The run has no more of them."""


class TrackerModule(Protocol):
    """What the module of a tracker has."""

    def open_run(self, to: Path, name: str) -> RunWriter:
        """Begin a run under the name to show, in a folder for this run alone.

        Raises:
            ImportError: The tracker is not installed.
            UserError: It has this run already, or cannot be reached.
        """

    def next_step(self, out: Path) -> str:
        """What shows the runs in the folders within ``out``."""


def log_runs(tracker: str, runs: Mapping[str, Path], out: Path) -> int:
    """Write runs for a tracker, each into a folder of its name; how many scalars.

    Args:
        tracker: Its name.
        runs: The folder of each run, by the name to show.
        out: The folder for the runs.

    Raises:
        UserError: The tracker is not installed, a folder is no run's, or ``out`` is there already.
    """
    if out.exists():
        raise UserError(f"{out}: is there already: choose another --out, or remove it")
    for folder in runs.values():
        if not (folder / DESCRIPTION).exists():
            raise UserError(f"{folder}: is not a run's folder: it has no {DESCRIPTION}")
    count = 0
    for name, folder in runs.items():
        writer = _open_run(tracker, out / name, name)
        scalars = list(_scalars(read_metrics(folder)))
        writer.write(scalars)
        writer.close()
        count += len(scalars)
    return count


def next_step(tracker: str, out: Path) -> str:
    """What shows the runs that :func:`log_runs` wrote."""
    return _load(tracker).next_step(out)


class Live:
    """Writes the records of a run for trackers while it trains, into folders within the run's.

    A run that is resumed is written anew: the records of steps that are done again are cut off.

    Args:
        trackers: Their names; each is that of a folder, too.
        folder: The run's folder.

    Raises:
        UserError: A tracker is not installed.
    """

    def __init__(self, trackers: Collection[str], folder: Path) -> None:
        self._metrics, self._read, self._updated = folder / METRICS, 0, 0.0
        for tracker in trackers:
            shutil.rmtree(folder / tracker, ignore_errors=True)
        self._writers = [_open_run(tracker, folder / tracker, folder.name) for tracker in trackers]

    def update(self) -> None:
        """Write what was recorded since the last time, if that was a moment ago."""
        if time.monotonic() - self._updated > UPDATE_SECONDS:
            self._write_rest()
            self._updated = time.monotonic()

    def close(self) -> None:
        """Write the rest."""
        self._write_rest()
        for writer in self._writers:
            writer.close()

    def _write_rest(self) -> None:
        scalars = list(_scalars(self._new_records()))
        for writer in self._writers:
            writer.write(scalars)

    def _new_records(self) -> Iterator[dict[str, Any]]:
        if not self._metrics.exists():
            return
        with self._metrics.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if (record := read_record(line)) is not None:
                    yield record


def tracking(trackers: Collection[str], folder: Path) -> Live | None:
    """What writes the records of the run in ``folder`` while it trains; None if nothing is asked for."""
    return Live(tuple(dict.fromkeys(trackers)), folder) if trackers else None


def _open_run(tracker: str, to: Path, name: str) -> RunWriter:
    try:
        return _load(tracker).open_run(to, name)
    except ImportError:
        raise UserError(f"{tracker} is not installed: pip install 'nasgrow[{tracker}]'") from None


def _load(tracker: str) -> TrackerModule:
    from nasgrow.trackers import mlflow, tensorboard, trackio, wandb

    modules: dict[str, TrackerModule] = {
        "mlflow": mlflow,
        "tensorboard": tensorboard,
        "trackio": trackio,
        "wandb": wandb,
    }
    return modules[tracker]


def _scalars(records: Iterable[Mapping[str, Any]]) -> Iterator[TaggedValue]:
    """The scalars of records, those that are finite."""
    for record in records:
        kind = record["kind"]
        named = [(f"{kind}/{name}", name) for name in SERIES.get(kind, ())]
        if kind == "evaluation":
            named += [(f"place/{name}", name) for name in PLACES]
        for tag, name in named:
            if record.get(name) is not None:
                yield tag, float(record[name]), int(record["step"])
