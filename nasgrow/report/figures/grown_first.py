"""Final loss by what grows first, and when."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure

from nasgrow.report.figures import style
from nasgrow.report.figures.timeline import DIMENSION_NAMES
from nasgrow.report.load import Trial, dimensions

LIGHT, DEEP = "#fefefe", "#010101"
"""Of text on the colours of cells, which are the same on a dark page."""

BINS = 10
"""Parts of the budget."""


def cells(schedules: Sequence[Trial]) -> dict[tuple[str, int], list[float]]:
    """Losses by dimension and by the tenth of the budget of the first event.

    A schedule that begins with several dimensions at once counts for each.
    """
    found: dict[tuple[str, int], list[float]] = {}
    for trial in schedules:
        first = trial.schedule.events[0]
        # Times lie on a grid that often has the edges of bins: rounding must not move them down.
        place = min(BINS - 1, int(first.at * BINS + 1e-9))
        for name in dimensions(first):
            assert trial.loss is not None
            found.setdefault((name, place), []).append(trial.loss)
    return found


def differ(schedules: Sequence[Trial]) -> bool:
    """Whether they differ in what their first events grow, or in the tenth of the budget of these."""
    return len({frozenset(cells([trial])) for trial in schedules}) > 1


@style.styled
def heat_map(schedules: Sequence[Trial]) -> Figure:
    """Mean final loss by the first dimension grown (rows) and by time (columns), with counts."""
    found = cells(schedules)
    rows = [name for name in DIMENSION_NAMES if any(name == row for row, _ in found)]
    low, high = min(place for _, place in found), max(place for _, place in found)
    table = np.full((len(rows), high - low + 1), np.nan)
    for (name, place), losses in found.items():
        table[rows.index(name), place - low] = fmean(losses)
    figure = style.canvas(1.5 + 0.62 * len(rows))
    axes = figure.add_subplot()
    axes.grid(visible=False)
    image = axes.imshow(table, cmap="cividis", aspect="auto")
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
            color=LIGHT if mean < middle else DEEP,
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
