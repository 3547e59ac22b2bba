"""The console of commands that print tables."""

from __future__ import annotations

from rich.console import Console

PIPED_WIDTH = 140


def study_console(*, to_stderr: bool = False) -> Console:
    """A console that does not squeeze tables into 80 columns where its output is not a terminal."""
    console = Console(stderr=to_stderr, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console
