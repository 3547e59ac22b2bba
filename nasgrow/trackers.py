"""Runs in the trackers that people use already, written from their records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nasgrow.errors import UserError
from nasgrow.training.records import DESCRIPTION, read_metrics

SERIES = {
    "train": ("loss", "learning_rate", "gradient", "tokens_per_second"),
    "evaluation": ("validation",),
    "event": ("loss_before", "loss_after", "change", "new_gradient"),
}
"""What is shown of each kind of record; all of it over steps."""

PLACES = ("tokens", "charged", "fraction")
"""Shown beside the loss, so that a curve can be read over them."""


def to_tensorboard(runs: Mapping[str, Path], to: Path) -> int:
    """Write runs as TensorBoard's event files, each into a folder of its name; how many scalars.

    Args:
        runs: The folder of each run, by the name to show.
        to: The folder for ``tensorboard --logdir``.

    Raises:
        UserError: TensorBoard is not installed, a folder is no run's, or ``to`` is there already.
    """
    try:
        from tensorboard.summary import DirectoryOutput, Writer  # type: ignore[import-untyped]
    except ImportError:
        raise UserError("--to: tensorboard is not installed: pip install 'nasgrow[tensorboard]'") from None
    if to.exists():
        raise UserError(f"{to}: is there already: choose another --out, or remove it")
    count = 0
    for name, folder in runs.items():
        if not (folder / DESCRIPTION).exists():
            raise UserError(f"{folder}: is not a run's folder: it has no {DESCRIPTION}")
        writer = Writer(DirectoryOutput(str(to / name)))
        for tag, value, step in scalars(folder):
            writer.add_scalar(tag, value, step)
            count += 1
        writer.close()
    return count


def scalars(folder: Path) -> Iterator[tuple[str, float, int]]:
    """The scalars of a run: tag, value and step; values that are not finite are left out."""
    for record in read_metrics(folder):
        for name in SERIES.get(record["kind"], ()):
            yield from _scalar(f"{record['kind']}/{name}", record, name)
        if record["kind"] == "evaluation":
            for name in PLACES:
                yield from _scalar(f"place/{name}", record, name)


def _scalar(tag: str, record: Mapping[str, Any], name: str) -> Iterator[tuple[str, float, int]]:
    if record.get(name) is not None:
        yield tag, float(record[name]), int(record["step"])
