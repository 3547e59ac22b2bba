"""Write runs for Trackio: to a SQLite file, or to where Trackio's environment variables point."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from itertools import groupby
from pathlib import Path

from nasgrow.errors import UserError
from nasgrow.redact import redact
from nasgrow.trackers import RunWriter, TaggedValue

FOLDER_VARIABLE = "TRACKIO_DIR"
"""The variable that names Trackio's folder; Trackio reads it when it is imported."""


class TrackioRun:
    """Writes one run. Its project has the name of the parent of the run's folder.

    Raises:
        UserError: The project has a run of this name already, or Trackio refuses its settings.
    """

    def __init__(self, to: Path, name: str) -> None:
        out = to.parent
        given = os.environ.get(FOLDER_VARIABLE)
        os.environ.setdefault(FOLDER_VARIABLE, str(out.absolute()))
        with redirect_stdout(StringIO()):  # it prints how to show the project: next_step does
            import trackio

            if given is None:
                out.mkdir(parents=True, exist_ok=True)  # Trackio would only warn, and lose the values
            if _has_run(out.name, name):
                raise UserError(
                    f"{out.name}: this project of Trackio has a run {name} already: delete it there, or "
                    "choose another project by --out trackio/NAME"
                )
            with _errors_in_a_line():
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


def _has_run(project: str, name: str) -> bool:
    """Return whether the project in Trackio's folder has a run of this name; Trackio would add another."""
    import trackio

    try:
        return any(run.name == name for run in trackio.Api().runs(project))
    except ValueError:  # there is no such project
        return False


@contextmanager
def _errors_in_a_line() -> Iterator[None]:
    """Raise Trackio's errors as ``UserError``: a wrong variable, no token, or a refused Space."""
    try:
        yield
    except (ValueError, OSError) as error:
        line = next(iter(redact(str(error)).splitlines()), type(error).__name__)
        raise UserError(f"Trackio: {line}") from None
