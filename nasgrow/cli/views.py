"""A study on the terminal: where it stands, and what it says."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nasgrow.cli.durations import duration
from nasgrow.engines.standing import Standing
from nasgrow.search.summary import Summary


def study_view(summary: Summary, workers: Sequence[Standing], processes: int) -> RenderableType:
    """The study as a whole, its workers, its baselines."""
    parts: list[RenderableType] = [Text(_headline(summary, processes))]
    if workers:
        parts.append(_workers(workers))
    parts.append(_baselines(summary))
    return Group(*parts)


def one_line(text: str) -> Text:
    """A cell that gives way to the others: cut, not wrapped, where the table is too wide.

    Its column must be free to wrap, or the table would take the width from all columns alike.
    """
    return Text(text, no_wrap=True, overflow="ellipsis")


def counts(summary: Summary) -> str:
    """Trials and what became of them."""
    total = "" if summary.planned is None else f" of {summary.planned}"
    text = f"{summary.ended}{total} trials"
    aside = [f"{summary.pruned} pruned"] * bool(summary.pruned)
    aside += [summary.left_early] * bool(summary.left_early)
    aside += [f"{summary.diverged} diverged"] * bool(summary.diverged)
    return text + (f" ({', '.join(aside)})" if aside else "")


def progress_line(summary: Summary) -> str:
    """Where a study stands, in one line."""
    tried = sum(baseline.tried for baseline in summary.baselines)
    best = "" if summary.best is None else f", best loss {summary.best.loss:.4f}"
    fixed = "" if summary.best_fixed is None else f", best fixed size {summary.best_fixed.loss:.4f}"
    reused = f", {summary.reused:.0%} reused" if summary.reused else ""
    return f"{counts(summary)}, {tried} baseline runs{_confirmations(summary)}{best}{fixed}{reused}"


def _confirmations(summary: Summary) -> str:
    many = summary.confirmations
    return f", {summary.confirmed} of {many} confirmation runs" if many else ""


def _headline(summary: Summary, processes: int) -> str:
    tried = sum(baseline.tried for baseline in summary.baselines)
    planned = sum(baseline.planned for baseline in summary.baselines)
    parts = [
        f"{summary.name}: {counts(summary)}, {tried} of {planned} baseline runs{_confirmations(summary)}",
        f"{summary.charged:.3g} FLOPs charged, {summary.executed:.3g} executed ({summary.reused:.0%} reused)",
    ]
    if summary.best is not None:
        parts.append(f"best loss {summary.best.loss:.4f} (trial {summary.best.number})")
    if summary.left:
        parts.append(f"about {duration(summary.left / max(1, processes))} left")
    return "\n".join((parts[0], "; ".join(parts[1:])))


def _workers(workers: Sequence[Standing]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("worker", "trial", "stage"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", width=12)
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("schedule")
    for standing in workers:
        table.add_row(
            str(standing.worker),
            f"{'' if standing.kind == 'search' else f'{standing.kind} '}{standing.trial}",
            f"{standing.stage} of {standing.stages}",
            ProgressBar(total=1.0, completed=standing.fraction, width=12),
            "" if standing.loss is None else f"{standing.loss:.3f}",
            one_line(standing.schedule),
        )
    return table


def _baselines(summary: Summary) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("fixed size", no_wrap=True)
    for heading in ("loss", "rate", "tried", "growth"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("shape")
    for baseline in summary.baselines:
        apart = ""
        if baseline.loss is not None and summary.best_grown is not None:
            apart = f"{summary.best_grown.loss - baseline.loss:+.4f}"
        table.add_row(
            baseline.name,
            "" if baseline.loss is None else f"{baseline.loss:.4f}",
            "" if baseline.rate is None else f"{baseline.rate:.3g}",
            f"{baseline.tried} of {baseline.planned}",
            apart,
            one_line(baseline.shape),
        )
    return table
