"""Render the state of a study for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nasgrow.cli.console import plain_table
from nasgrow.cli.durations import between, duration
from nasgrow.study.summary import Summary

MAX_SHOWN_SHAPES = 8
"""The most fixed shapes in a table: the final one and the best others."""


def study_view(summary: Summary, running: Sequence[Mapping[str, Any]], workers: int) -> RenderableType:
    """Render the state of a study: totals, running trials and baselines.

    Args:
        summary: The summary of the study.
        running: The running trials, as :meth:`nasgrow.driver.Running.to_json` returns them.
        workers: The number of workers that share the time left.
    """
    parts: list[RenderableType] = [Text(_headline(summary, workers))]
    if running:
        parts.append(_running(running))
    parts.append(_baselines(summary))
    return Group(*parts)


def one_line(text: str) -> Text:
    """Return a table cell that is cut, not wrapped, if the table is too wide.

    Its column must allow wrapping, or rich would narrow all columns alike.
    """
    return Text(text, no_wrap=True, overflow="ellipsis")


def progress_line(summary: Summary, workers: int) -> str:
    """Return the state of a study in one line."""
    best = "" if summary.best is None else f", best loss {summary.best.loss:.4f} ({summary.best.name})"
    fixed = ""
    if summary.best_fixed is not None:
        many = summary.finished_sizes
        fixed = f", best of {many} fixed shape{'s' if many > 1 else ''} {summary.best_fixed.loss:.4f}"
    reused = f", {summary.reused:.0%} reused" if summary.reused else ""
    left = _left(summary, workers)
    return f"{summary.counts}{best}{fixed}{reused}" + (f", {left}" if left else "")


def _left(summary: Summary, workers: int) -> str:
    """Return the time left in words; empty if less than a second is, or it is unknown and nothing runs.

    It is a range, because trials differ and tuning may be extended.
    """
    if summary.left is None:
        return "time left is known once a trial has ended" if summary.running else ""
    least, most = (seconds / max(1, workers) for seconds in summary.left)
    return f"{between(least, most)} left" if most >= 1 else ""


def _headline(summary: Summary, processes: int) -> str:
    parts = [
        f"{summary.name}: {summary.counts}",
        f"{summary.charged:.3g} FLOPs charged, {summary.executed:.3g} executed ({summary.reused:.0%} reused)",
    ]
    if summary.best is not None:
        time = "" if summary.best.seconds is None else f", {duration(summary.best.seconds)} of training"
        parts.append(f"best validation loss {summary.best.loss:.4f} (trial {summary.best.number}{time})")
    if left := _left(summary, processes):
        parts.append(left)
    return "\n".join((parts[0], "; ".join(parts[1:])))


def _running(running: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table(("trial", "stage"))
    table.add_column("", width=12)
    table.add_column("training loss", justify="right", no_wrap=True)
    table.add_column("schedule")
    for one in running:
        table.add_row(
            _label(one),
            f"{one['stage']} of {one['stages']}" if one["begun"] else "starting",
            ProgressBar(total=1.0, completed=one["fraction"], width=12),
            "" if one["loss"] is None else f"{one['loss']:.3f}",
            one_line(one["schedule"]),
        )
    return table


def _baselines(summary: Summary) -> Table:
    table = plain_table(("loss", "rate", "tried", "growth", "time"), first="fixed shape", last="shape")
    sizes = summary.searched_sizes
    for baseline in sizes[:MAX_SHOWN_SHAPES]:
        apart = ""
        if baseline.loss is not None and summary.best_grown is not None:
            apart = f"{summary.best_grown.loss - baseline.loss:+.4f}"
        table.add_row(
            baseline.name,
            "" if baseline.loss is None else f"{baseline.loss:.4f}",
            "" if baseline.rate is None else f"{baseline.rate:.3g}",
            str(baseline.tried),
            apart,
            duration(baseline.seconds),
            one_line(baseline.shape),
        )
    more = len(sizes) - MAX_SHOWN_SHAPES
    if more > 0:
        table.add_row(f"and {more} more")
    return table


def _label(one: Mapping[str, Any]) -> str:
    return str(one["trial"]) if one["kind"] == "search" else f"{one['kind']} {one['trial']}"
