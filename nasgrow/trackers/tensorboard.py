"""Write runs as TensorBoard's event files."""

from __future__ import annotations

from pathlib import Path

from nasgrow.trackers import RunWriter, TaggedValue


class EventFiles:
    """Writes the event files of one run into a folder."""

    def __init__(self, to: Path) -> None:
        from tensorboard.summary import DirectoryOutput, Writer  # type: ignore[import-untyped]

        self._writer = Writer(DirectoryOutput(str(to)))

    def write(self, scalars: list[TaggedValue]) -> None:
        """Add scalars and flush them."""
        for tag, value, step in scalars:
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def open_run(to: Path, name: str) -> RunWriter:
    """Begin a run in the folder ``to``. TensorBoard shows the path of the folder as the run's name."""
    return EventFiles(to)


def next_step(out: Path) -> str:
    """Return the command that shows the runs."""
    return f"tensorboard --logdir {out}"
