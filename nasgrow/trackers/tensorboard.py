"""Runs as TensorBoard's event files."""

from __future__ import annotations

from pathlib import Path

from nasgrow.trackers import RunWriter, TaggedValue


class EventFiles:
    """The event files of one run, in a folder."""

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
    """Begin a run in a folder, of which TensorBoard shows the path as its name."""
    return EventFiles(to)


def next_step(out: Path) -> str:
    """The command that shows the runs."""
    return f"tensorboard --logdir {out}"
