"""The style of all figures: palette, fonts, legends and axes, readable in print and by the colour-blind.

A figure can have *tips*: tooltips at points, which the page shows under the pointer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, FAINT, GRID_LINES = "#222222", "#8a8a8a", "#e4e4e4"
SCHEDULES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
"""Colours of schedules, the best first (Okabe and Ito's palette, which is safe for the colour-blind)."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (5, 1.5, 1.5, 1.5)), (0, (8, 3)))
"""Line styles of schedules, so that they stay distinct in grey."""
BASELINES = ("#111111", "#e69f00", "#6e6e6e", "#b38600", "#999999")
"""Colours of fixed shapes, the final shape first. None is black: matplotlib omits that default in SVG."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DARK = {
    "#ffffff": "#15171a",
    "#111111": "#f2f2f2",
    INK: "#e4e6e8",
    FAINT: "#8f959d",
    GRID_LINES: "#31353b",
    "#0072b2": "#4aa8e0",
    "#d55e00": "#ff8b45",
    "#009e73": "#30c79a",
    "#cc79a7": "#e19ac3",
    "#56b4e9": "#9ad6f8",
    "#e69f00": "#f0b73c",
    "#6e6e6e": "#a9afb6",
    "#b38600": "#c9a227",
    "#999999": "#868c93",
}
"""The colour that replaces each of these in dark mode."""
FIGURE_WIDTH = 7.4
"""The width of every figure, in inches."""
RASTER = 160
"""Dots per inch of PNG files, and of the rasterized parts of SVG files."""
LEGEND, HANDLE = 100, 8
"""The width of a legend, and of the handle of one entry, in letters."""
DENSE = 1000
"""The most points drawn as vectors; more are rasterized, or the page would have many megabytes."""

RC: Any = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 10,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "grid.color": GRID_LINES,
    "grid.linewidth": 0.7,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.8,
    "text.color": INK,
    "text.parse_math": False,  # names come from study files, and may hold dollar signs
    "svg.fonttype": "path",
    "svg.hashsalt": "nasgrow",  # the same records give the same file
}

TIP_RADIUS = 6
"""The radius, in points, within which a browser shows a tip without the page's script."""

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that it draws in this style."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(RC):
            return draw(*args, **kwargs)

    return inside


@dataclass(frozen=True)
class Tip:
    """A tooltip at a point of some axes, in data coordinates."""

    axes: Axes
    x: float
    y: float
    text: str


class Drawing(Figure):
    """A figure with tips."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.tips: list[Tip] = []


def tip(axes: Axes, x: float, y: float, text: str) -> None:
    """Add a tip to the figure of some axes, which :func:`canvas` made."""
    figure = axes.figure
    assert isinstance(figure, Drawing)
    figure.tips.append(Tip(axes, float(x), float(y), text))


def save(figure: Figure, stem: Path) -> None:
    """Write a figure as SVG, with its tips, and as PNG. Its layout does not adapt afterwards.

    Args:
        figure: The figure.
        stem: The path of both files without their suffix.
    """
    with mpl.rc_context(RC):
        drawn = stem.with_suffix(".svg")
        figure.savefig(drawn, metadata={"Date": None}, dpi=RASTER)
        if isinstance(figure, Drawing) and figure.tips:
            drawn.write_text(_with_tips(drawn.read_text(encoding="utf-8"), figure), encoding="utf-8")
        figure.set_layout_engine("none")  # the PNG keeps the layout of the SVG
        figure.savefig(stem.with_suffix(".png"), dpi=RASTER)


def _with_tips(svg: str, figure: Drawing) -> str:
    """Add to a figure's SVG an invisible circle with a title for each tip inside its axes."""
    points, height = 72 / figure.dpi, 72 * figure.get_figheight()
    circles = []
    for one in figure.tips:
        x, y = one.axes.transData.transform((one.x, one.y))
        box = one.axes.bbox
        if box.x0 - 1 <= x <= box.x1 + 1 and box.y0 - 1 <= y <= box.y1 + 1:
            text = escape(re.sub(r"[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", one.text))
            at = f'cx="{points * x:.1f}" cy="{height - points * y:.1f}" r="{TIP_RADIUS}"'
            circles.append(f"<circle {at}><title>{text}</title></circle>")
    inside = "\n".join(circles)
    tips = f'<g class="tips" fill="none" pointer-events="all">\n{inside}\n</g>\n'
    head, end, tail = svg.rpartition("</svg>")
    return head + tips + end + tail


def canvas(height: float) -> Drawing:
    """Make an empty figure of full width and a height in inches."""
    return Drawing(figsize=(FIGURE_WIDTH, height), layout="constrained")


def cloud(
    axes: Axes, x: Sequence[float], y: Sequence[float], mark: str, tips: Iterable[str] = (), **look: Any
) -> None:
    """Draw points with tips.

    More than :data:`DENSE` points are drawn rasterized, more transparent and without tips.

    Args:
        axes: The axes to draw on.
        x: The horizontal position of each point.
        y: The vertical position of each point.
        mark: The marker.
        tips: The text of the tip of each point; by default there are no tips.
        **look: Further arguments of ``Axes.plot``, which override the defaults.
    """
    many = len(x) > DENSE
    look = {"linestyle": "none", "markersize": 4.5, "alpha": 0.25 if many else 0.7, **look}
    axes.plot(x, y, marker=mark, rasterized=many, **look)
    for at, value, text in () if many else zip(x, y, tips, strict=False):
        tip(axes, at, value, text)


def percent(axes: Axes) -> None:
    """Show the fractions of the horizontal axis as percentages."""
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")


def plain_log(axis: Any, values: list[float]) -> None:
    """Put the ticks of a logarithmic axis at these values only, written as plain numbers.

    The axis must be logarithmic already: setting its scale resets the ticks.

    Args:
        axis: The ``xaxis`` or ``yaxis`` of some axes.
        values: The values.
    """
    axis.set_major_locator(mpl.ticker.FixedLocator(values))
    axis.set_minor_locator(mpl.ticker.NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:.3g}")


def legend_below(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """Put the legend of some axes below the figure, where it hides nothing, as :func:`legend_of`."""
    legend_of(figure, [axes], columns)


def legend_of(figure: Figure, panels: Sequence[Axes], columns: int = 2) -> None:
    """Put one legend for several axes below the figure, if they have any labels.

    A label that several of them have appears once.

    Args:
        figure: The figure.
        panels: The axes.
        columns: The most columns; there are fewer if they would not fit the width of the figure.
    """
    named: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if named:
        columns = next((many for many in range(columns, 1, -1) if _fits(list(named), many)), 1)
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns)


def _fits(labels: Sequence[str], columns: int) -> bool:
    """Return whether a legend with this number of columns fits the width of the figure."""
    rows = -(-len(labels) // columns)
    widest = [max(map(len, labels[at : at + rows])) + HANDLE for at in range(0, len(labels), rows)]
    return sum(widest) <= LEGEND


def short(text: str, length: int = 46) -> str:
    """Cut a name to ``length`` letters, with an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def wrapped(text: str, width: int, lines: int = 3) -> str:
    """Wrap a name to at most ``lines`` lines, and cut the rest with an ellipsis."""
    found = wrap(text, width)
    return "\n".join(
        found if len(found) <= lines else [*found[: lines - 1], short(found[lines - 1] + "…", width)]
    )


def off_scale(axes: Axes, name: str, loss: float, *, above: bool, color: str) -> None:
    """Add a loss outside the vertical axis to the legend, with a marker at that end of the axis."""
    axes.plot(
        [0.985],
        [0.98 if above else 0.02],
        marker="^" if above else "v",
        color=color,
        linestyle="none",
        transform=axes.transAxes,
        label=f"off the scale: {short(name)} {loss:.2f}",
    )


FEW_LOSSES, NEAR_SPREADS, QUANTILE = 4, 4.0, 0.9
"""The fewest losses with a spread, the most spreads to a near loss, and the quantile that is shown.

:func:`scale` uses them.
"""


def scale(losses: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Return limits of an axis that shows most of ``losses``, and the ``others`` near them.

    Losses above the quantile :data:`QUANTILE` may lie outside, also if there are few losses: they
    would squeeze the rest together. The spread is the distance from the lowest loss to that
    quantile, but at least a hundredth of the lowest loss. One of the others is near if it is at
    most :data:`NEAR_SPREADS` spreads below the lowest loss or above the quantile. With fewer than
    :data:`FEW_LOSSES` losses, all others are near. The limits include a margin.

    Args:
        losses: The losses, at least one.
        others: Further losses; may be empty.
    """
    low, high = min(losses), float(np.quantile(losses, QUANTILE))
    reach = NEAR_SPREADS * max(high - low, 0.01 * abs(low)) if len(losses) >= FEW_LOSSES else math.inf
    near = [other for other in others if low - reach <= other <= high + reach]
    low, high = min([low, *near]), max([high, *near])
    margin = 0.06 * (high - low) or 0.05
    return low - margin, high + margin


def beyond_fall(losses: list[tuple[float, float]], fall: float = 0.1) -> tuple[float, float]:
    """Return limits of the loss axis, with a margin, that cut off the first, steep fall of curves.

    The lower limit is below all points; the upper one is above the points from ``fall`` on. If all
    points are before ``fall``, the limits enclose only the lowest loss.

    Args:
        losses: Fraction of the budget and loss of each point, at least one.
        fall: The fraction of the budget that may be cut off.
    """
    low = min(loss for _, loss in losses)
    high = max((loss for fraction, loss in losses if fraction >= fall), default=low)
    margin = 0.06 * (high - low) or 0.1
    return low - margin, high + margin
