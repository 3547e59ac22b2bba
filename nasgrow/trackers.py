"""Runs in TensorBoard, written from their records: at once, or while they train."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

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

TENSORBOARD = "tensorboard"
"""The folder of event files within a run's."""

TRACKED_AXES = ("tokens", "charged", "fraction")
"""Shown beside the loss, so that a curve can be read over them."""


def to_tensorboard(runs: Mapping[str, Path], to: Path) -> int:
    """Write runs as TensorBoard's event files, each into a folder of its name; how many scalars.

    Args:
        runs: The folder of each run, by the name to show.
        to: The folder for ``tensorboard --logdir``.

    Raises:
        UserError: TensorBoard is not installed, a folder is no run's, or ``to`` is there already.
    """
    if to.exists():
        raise UserError(f"{to}: is there already: choose another --out, or remove it")
    count = 0
    for name, folder in runs.items():
        if not (folder / DESCRIPTION).exists():
            raise UserError(f"{folder}: is not a run's folder: it has no {DESCRIPTION}")
        writer = _writer(to / name)
        for record in read_metrics(folder):
            count += _write(writer, record)
        writer.close()
    return count


class Live:
    """Writes the records of a run for TensorBoard while it trains, into a folder within the run's.

    A run that is resumed is written anew: the records of steps that are done again are cut off.

    Args:
        folder: The run's folder.

    Raises:
        UserError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._metrics, self._read, self._updated = folder / METRICS, 0, 0.0
        shutil.rmtree(folder / TENSORBOARD, ignore_errors=True)
        self._writer = _writer(folder / TENSORBOARD)

    def update(self) -> None:
        """Write what was recorded since the last time, if that was a moment ago."""
        if time.monotonic() - self._updated > UPDATE_SECONDS:
            self._write_rest()
            self._updated = time.monotonic()

    def close(self) -> None:
        """Write the rest."""
        self._write_rest()
        self._writer.close()

    def _write_rest(self) -> None:
        if not self._metrics.exists():
            return
        with self._metrics.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if (record := read_record(line)) is not None:
                    _write(self._writer, record)
        self._writer.flush()


def tracking(trackers: Collection[str], folder: Path) -> Live | None:
    """What writes the records of the run in ``folder`` while it trains; None if nothing is asked for."""
    return Live(folder) if "tensorboard" in trackers else None


def _writer(to: Path) -> Any:
    try:
        from tensorboard.summary import DirectoryOutput, Writer  # type: ignore[import-untyped]
    except ImportError:
        raise UserError("tensorboard is not installed: pip install 'nasgrow[tensorboard]'") from None
    return Writer(DirectoryOutput(str(to)))


def _write(writer: Any, record: Mapping[str, Any]) -> int:
    """Write the scalars of a record, those that are finite; how many."""
    found = list(_scalars(record))
    for tag, value, step in found:
        writer.add_scalar(tag, value, step)
    return len(found)


def _scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
    """The scalars of a record: tag, value and step."""
    for name in SERIES.get(record["kind"], ()):
        yield from _scalar(f"{record['kind']}/{name}", record, name)
    if record["kind"] == "evaluation":
        for name in TRACKED_AXES:
            yield from _scalar(f"place/{name}", record, name)


def _scalar(tag: str, record: Mapping[str, Any], name: str) -> Iterator[tuple[str, float, int]]:
    if record.get(name) is not None:
        yield tag, float(record[name]), int(record["step"])
