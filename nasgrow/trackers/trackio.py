"""Runs in Trackio: in a SQLite file, or where Trackio's own variables point."""

from __future__ import annotations

import os
from contextlib import redirect_stdout
from io import StringIO
from itertools import groupby
from pathlib import Path

from nasgrow.trackers import RunWriter, TaggedValue

FOLDER_VARIABLE = "TRACKIO_DIR"
"""The variable that names Trackio's folder; Trackio reads it when it is imported."""


class TrackioRun:
    """One run of the project that has the name of the folder around the run's."""

    def __init__(self, to: Path, name: str) -> None:
        out = to.parent
        os.environ.setdefault(FOLDER_VARIABLE, str(out.absolute()))
        with redirect_stdout(StringIO()):  # it prints how to show the project: next_step does
            import trackio

            self._run = trackio.init(out.name, name, embed=False, auto_log_cpu=False, auto_log_gpu=False)

    def write(self, scalars: list[TaggedValue]) -> None:
        """Log scalars, those of a step together."""
        for step, found in groupby(scalars, lambda scalar: scalar[2]):
            self._run.log({tag: value for tag, value, _ in found}, step=step)

    def close(self) -> None:
        """Let Trackio write the rest."""
        import trackio

        with redirect_stdout(StringIO()):
            trackio.finish()


def open_run(to: Path, name: str) -> RunWriter:
    """Begin a run; runs whose folders share a parent share a project."""
    return TrackioRun(to, name)


def next_step(out: Path) -> str:
    """Return the command that shows the runs."""
    return f"{FOLDER_VARIABLE}={os.environ.get(FOLDER_VARIABLE, out)} trackio show --project {out.name}"
