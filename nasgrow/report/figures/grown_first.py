"""Draw a heat map of the final loss by the dimension that the first event grows, and by its time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure

from nasgrow.report.figures import style
from nasgrow.report.figures.timeline import DIMENSION_NAMES
from nasgrow.report.load import Trial, dimensions

LIGHT, DEEP = "#fefefe", "#010101"
"""Text colours on dark and light cells. Cells look the same in dark mode, so these must not change."""

PALE = 0.3
"""The opacity of a cell with one schedule: it may be an outlier, so it is not drawn in a strong colour."""

BINS = 10
"""The number of equal parts into which the budget is divided."""


def cells(schedules: Sequence[Trial]) -> dict[tuple[str, int], list[float]]:
    """Group losses by what the first event of the schedule grows and when it happens.

    Args:
        schedules: Finished trials. Each has a loss and at least one event.

    Returns:
        For each (dimension, tenth), the losses of its schedules. The tenth is that of the budget in
        which the event happens, counted from 0. A schedule whose first event grows several
        dimensions counts for each of them.
    """
    found: dict[tuple[str, int], list[float]] = {}
    for trial in schedules:
        first = trial.schedule.events[0]
        # Event times often lie exactly on the edge of a bin: rounding must not move them to the lower bin.
        place = min(BINS - 1, int(first.at * BINS + 1e-9))
        for name in dimensions(first):
            assert trial.loss is not None
            found.setdefault((name, place), []).append(trial.loss)
    return found


def differ(schedules: Sequence[Trial]) -> bool:
    """Return whether first events differ in the dimensions they grow or the tenth of the budget."""
    return len({frozenset(cells([trial])) for trial in schedules}) > 1


@style.styled
def heat_map(schedules: Sequence[Trial]) -> Figure:
    """Draw the mean final loss by the dimension grown first (rows) and by time (columns).

    Cells with one schedule are pale.
    """
    found = cells(schedules)
    rows = [name for name in DIMENSION_NAMES if any(name == row for row, _ in found)]
    low, high = min(place for _, place in found), max(place for _, place in found)
    table = np.full((len(rows), high - low + 1), np.nan)
    opacity = np.zeros_like(table)
    for (name, place), losses in found.items():
        at = rows.index(name), place - low
        table[at], opacity[at] = fmean(losses), 1.0 if len(losses) > 1 else PALE
    figure = style.canvas(1.5 + 0.62 * len(rows))
    axes = figure.add_subplot()
    axes.grid(visible=False)
    image = axes.imshow(table, cmap="cividis", aspect="auto", alpha=opacity)
    middle = (np.nanmin(table) + np.nanmax(table)) / 2
    for (name, place), losses in found.items():
        mean = fmean(losses)
        axes.text(
            place - low,
            rows.index(name),
            f"{mean:.3f}\nn={len(losses)}",
            ha="center",
            va="center",
            fontsize=8.5,
            linespacing=1.15,
            color=style.INK if len(losses) == 1 else LIGHT if mean < middle else DEEP,
        )
    axes.set_xticks(
        range(high - low + 1), [f"{10 * place}–{10 * place + 10}%" for place in range(low, high + 1)]
    )
    axes.set_yticks(range(len(rows)), [DIMENSION_NAMES[name] for name in rows])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("budget spent at the first event")
    figure.colorbar(image, ax=axes, label="mean validation loss\n(nats per token)", pad=0.02)
    return figure
