"""Draw a map as heat maps, with a square for each final shape and budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nasgrow.flops import parameter_count
from nasgrow.report import words
from nasgrow.report.budgets import share
from nasgrow.report.figures import style
from nasgrow.report.map.results import CellResult, MapRecords, Rival
from nasgrow.report.statistics import Estimate


@dataclass(frozen=True)
class Square:
    """The content of one square.

    Attributes:
        value: The number that sets its colour; higher is better for growth.
        text: The text in it.
        sure: Whether growth is better at the 95% level; then the square has a frame.
    """

    value: float
    text: str
    sure: bool


ALL_DIVERGED = Square(0.0, "diverged", False)
"""The square of a cell in which every confirmed schedule diverged."""


@style.styled
def savings(found: MapRecords) -> Figure | None:
    """Draw a heat map of the compute that growth saves at equal loss, compared with the final shape.

    Only confirmed cells have a square: those with a known saving, and those in which every schedule
    diverged. None if no cell has one.
    """
    return _figure(found, [("compute saved at equal loss, same final shape", _saved)], percent=True)


@style.styled
def differences(found: MapRecords) -> Figure | None:
    """Draw the loss of fixed shapes minus that of the best schedule, at equal FLOPs and seconds.

    None without a result.
    """
    panels: list[tuple[str, Callable[[CellResult], Square | None]]] = [
        ("ahead of the best fixed shape at equal FLOPs", _ahead(lambda one: one.fixed, _at_equal_compute)),
        ("ahead of the best fixed shape at equal seconds", _ahead(lambda one: one.fixed, _at_equal_seconds)),
        ("ahead of the final shape at equal seconds", _ahead(lambda one: one.final, _at_equal_seconds)),
    ]
    return _figure(found, panels, percent=False)


def _at_equal_compute(rival: Rival) -> Estimate | None:
    return rival.difference


def _at_equal_seconds(rival: Rival) -> Estimate | None:
    return rival.at_equal_seconds


def _saved(one: CellResult) -> Square | None:
    if one.diverged:
        return ALL_DIVERGED
    equal = one.final.saved if one.final else None
    if equal is None:
        return None
    least, most = equal.rungs[0].times, equal.rungs[-1].times
    times = equal.times or (most if equal.above else least)
    value = share(times)
    lines = [words.saved(equal)]
    if one.confirmed and equal.apart:
        lines.append("95% level")
    elif one.confirmed and equal.sure:
        lines.append(words.saved_between(equal, "<", ">"))
    return Square(value, "\n".join(lines), one.saves == "won")


def _ahead(
    of: Callable[[CellResult], Rival | None], by: Callable[[Rival], Estimate | None]
) -> Callable[[CellResult], Square | None]:
    def square(one: CellResult) -> Square | None:
        if one.diverged:
            return ALL_DIVERGED
        rival = of(one)
        found = None if rival is None else by(rival)
        if rival is None or found is None:
            return None
        lines = [f"{-found.value:+.3f}".replace("-", "−")]
        sure = False
        if one.confirmed and found.low is not None and found.high is not None:
            lines.append(f"±{(found.high - found.low) / 2:.3f}")
            sure = found.high < 0 and not rival.unconfirmed
        return Square(-found.value, "\n".join(lines), sure)

    return square


def _figure(
    found: MapRecords, panels: list[tuple[str, Callable[[CellResult], Square | None]]], *, percent: bool
) -> Figure | None:
    rows, columns = len(found.map.grid), len(found.map.grid[0])
    squares = [
        {
            (row, column): square
            for row in range(rows)
            for column in range(columns)
            if (one := found.at(row, column)) is not None and (square := of(one)) is not None
        }
        for _, of in panels
    ]
    values = [square.value for one in squares for square in one.values()]
    if not values:
        return None
    reach = max(0.05 if percent else 0.01, *(abs(value) for value in values))
    figure = style.canvas((0.55 * rows + 0.9) * len(panels))
    for index, ((title, _), shown) in enumerate(zip(panels, squares, strict=True), 1):
        axes = figure.add_subplot(len(panels), 1, index)
        axes.set_title(title)
        _panel(axes, found, shown, reach)
        if index == len(panels):
            axes.set_xlabel("tokens per parameter of the final shape")
    return figure


def _panel(axes: Axes, found: MapRecords, shown: dict[tuple[int, int], Square], reach: float) -> None:
    grid = found.map.grid
    matrix = np.full((len(grid), len(grid[0])), np.nan)
    for place, square in shown.items():
        matrix[place] = square.value
    axes.imshow(matrix, cmap="PuOr", norm=TwoSlopeNorm(0, -reach, reach), aspect="auto")
    axes.grid(False)
    for (row, column), square in shown.items():
        dark = abs(square.value) > 0.65 * reach
        color = "white" if dark else style.INK
        axes.text(column, row, square.text, ha="center", va="center", fontsize=8, color=color)
        if square.sure:
            box = Rectangle((column - 0.47, row - 0.45), 0.94, 0.9, fill=False, color=color, linewidth=1.6)
            axes.add_patch(box)
    budgets = [f"{cell.tokens_per_parameter:g}" for cell in grid[0]]
    axes.set_xticks(range(len(budgets)), budgets)
    axes.set_yticks(range(len(grid)), [row_name(found, row) for row in range(len(grid))])
    axes.tick_params(length=0)


def row_name(found: MapRecords, row: int) -> str:
    """Return a short name of the final shape of a row: hidden size, layers and parameters."""
    cell = found.map.grid[row][0]
    parameters = parameter_count(cell.shape, cell.study.variant)
    return f"h={cell.shape.hidden}, N={len(cell.shape.layers)} ({words.short_count(parameters)})"
