"""Write the records of runs for trackers such as TensorBoard: after the runs, or while they train.

Each tracker is a module of this package. It writes files, and sends data to a server only if the tracker's
own settings name one.
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
"""The fields of each kind of record that trackers show, over steps."""

UPDATE_SECONDS = 2.0
"""The least time between two updates of a run that trains."""

PLACES = ("tokens", "charged", "fraction")
"""Fields that are logged at each evaluation, so that losses can be plotted over them."""

TaggedValue = tuple[str, float, int]
"""Tag, value and step."""


class RunWriter(Protocol):
    """Writes one run for a tracker."""

    def write(self, scalars: list[TaggedValue]) -> None:
        """Write scalars, in the order of their steps, so that the tracker can show them."""

    def close(self) -> None:
        """End the run: no more scalars follow."""


class TrackerModule(Protocol):
    """The functions that the module of a tracker must have."""

    def open_run(self, to: Path, name: str) -> RunWriter:
        """Begin a run.

        Args:
            to: The folder for this run alone.
            name: The name of the run that the tracker shows.

        Raises:
            ImportError: The tracker is not installed.
            UserError: The tracker already has this run, or cannot be reached.
        """

    def next_step(self, out: Path) -> str:
        """Return the command that shows the runs in the folders within ``out``, or where to see them."""


def log_runs(tracker: str, runs: Mapping[str, Path], out: Path) -> int:
    """Write runs for a tracker; return the number of scalars.

    Args:
        tracker: The name of the tracker.
        runs: The folder of each run, by the name that the tracker shows.
        out: The folder to write into; each run gets a folder with its name there.

    Raises:
        UserError: The tracker is not installed, cannot be reached or already has a run; a folder is
            not that of a run; or ``out`` already exists.
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
    """Return the command that shows the runs that :func:`log_runs` wrote, or where to see them."""
    return _load(tracker).next_step(out)


class Live:
    """Writes the records of a run for trackers while it trains.

    Each tracker gets a new folder within the run's folder; an older one is removed. A resumed run
    is written again from its first record, because it has removed the records of the steps that it
    repeats.

    Args:
        trackers: The names of the trackers; their folders have the same names.
        folder: The run's folder.

    Raises:
        UserError: A tracker is not installed or cannot be reached.
    """

    def __init__(self, trackers: Collection[str], folder: Path) -> None:
        self._metrics, self._read, self._updated = folder / METRICS, 0, 0.0
        for tracker in trackers:
            shutil.rmtree(folder / tracker, ignore_errors=True)
        self._writers = [_open_run(tracker, folder / tracker, folder.name) for tracker in trackers]

    def update(self) -> None:
        """Write the records since the last update, if that is more than ``UPDATE_SECONDS`` ago."""
        if time.monotonic() - self._updated > UPDATE_SECONDS:
            self._write_rest()
            self._updated = time.monotonic()

    def close(self) -> None:
        """Write the remaining records and end the run."""
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
    """Return a writer for the records of the run in ``folder`` while it trains; None without trackers."""
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
    """Return the scalars of records that are finite; records hold null for the others."""
    for record in records:
        kind = record["kind"]
        named = [(f"{kind}/{name}", name) for name in SERIES.get(kind, ())]
        if kind == "evaluation":
            named += [(f"place/{name}", name) for name in PLACES]
        for tag, name in named:
            if record.get(name) is not None:
                yield tag, float(record[name]), int(record["step"])
