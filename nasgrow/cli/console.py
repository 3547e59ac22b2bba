"""The console of commands that print tables."""

from __future__ import annotations

from rich.console import Console

PIPED_WIDTH = 140
"""Columns of output that does not go to a terminal."""


def study_console(*, to_stderr: bool = False) -> Console:
    """Return a console; if its output is not a terminal, tables may be wider than 80 columns."""
    console = Console(stderr=to_stderr, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console
