"""The console and the style of tables of all commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 140
"""Columns of output that does not go to a terminal."""


def study_console(*, to_stderr: bool = False) -> Console:
    """Return a console; if its output is not a terminal, tables may be wider than 80 columns."""
    console = Console(stderr=to_stderr, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def print_sentences(console: Console, lines: Iterable[str]) -> None:
    """Print each line; a terminal gets it wrapped between words, a pipe or file as one line."""
    for line in lines:
        console.print(line, soft_wrap=not console.is_terminal)


def plain_table(numbers: Sequence[str], *, first: str | None = None, last: str | None = None) -> Table:
    """Return a table of numbers, with columns of text before and after them if they have a heading."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    if first is not None:
        table.add_column(first, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    if last is not None:
        table.add_column(last)
    return table
