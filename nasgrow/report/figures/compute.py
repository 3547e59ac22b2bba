"""Draw validation loss curves of schedules and fixed shapes over compute, tokens and seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nasgrow.report import words
from nasgrow.report.currencies import spent
from nasgrow.report.figures import style
from nasgrow.report.naming import side_by_side
from nasgrow.report.ranking import Contender
from nasgrow.report.trajectory import Floats, Trajectory
from nasgrow.study.study import ResolvedStudy


@style.styled
def loss_over_compute(
    schedules: Sequence[Contender], fixed: Sequence[tuple[str, Contender]], study: ResolvedStudy
) -> Figure | None:
    """Draw the validation loss over FLOPs, tokens and seconds, with events; None without a curve.

    Args:
        schedules: The schedules to draw, the best first.
        fixed: Fixed shapes with their names, the final one first.
        study: The study. If it has no measured step times, there is no panel of seconds.
    """
    names = side_by_side([one.origin for one in schedules])
    lines = [
        (one, f"fixed shape: {name}", style.BASELINES[index % len(style.BASELINES)], "-")
        for index, (name, one) in enumerate(fixed)
    ]
    lines += [
        (
            one,
            name,
            style.SCHEDULES[index % len(style.SCHEDULES)],
            style.DASHES[index % len(style.DASHES)],
        )
        for index, (name, one) in enumerate(zip(names, schedules, strict=True))
    ]
    whole = np.array([1.0])
    ends = [spent(study, one, whole) for one, *_ in lines]
    currencies = list(ends[0]) if ends else []
    figure = style.canvas(4.6)
    panels: Sequence[Axes] = figure.subplots(1, max(1, len(currencies)), sharey=True, squeeze=False)[0]
    points: list[tuple[float, float]] = []
    for axes, currency in zip(panels, currencies, strict=False):
        most = max(float(end[currency][0]) for end in ends)
        size, unit = words.unit(most) if currency == "FLOPs" else (1.0, currency)
        for one, label, color, dash in lines:

            def place(fraction: Floats, one: Contender = one) -> Floats:
                return spent(study, one, fraction)[currency] / size  # noqa: B023 - called at once

            points += draw_curve(axes, one.curve, place, label, color, dash)
        axes.set_xlim(0, 1.01 * most / size)
        axes.set_xlabel(f"compute ({unit})" if currency == "FLOPs" else currency)
        if currency == "tokens":
            axes.xaxis.set_major_formatter(lambda value, _: words.short_count(value))
    if not points:
        return None
    finish_curves(panels[0], points)
    style.legend_of(figure, panels)
    return figure


def draw_curve(
    axes: Axes,
    curve: Trajectory | None,
    place: Callable[[Floats], Floats],
    label: str,
    color: str,
    dash: object,
) -> list[tuple[float, float]]:
    """Draw a validation loss curve with its band over seeds and its events.

    Args:
        axes: The axes to draw on.
        curve: The curve; None draws nothing.
        place: Called with fractions of the budget; returns their positions on the horizontal axis.
        label: The name in the legend.
        color: The colour of line, band and marks.
        dash: The line style.

    Returns:
        Fraction of the budget and loss of each point drawn, events included; empty without a curve.
    """
    if curve is None or not len(curve.loss):
        return []
    points = list(zip(curve.fraction.tolist(), curve.loss.tolist(), strict=True))
    x = place(curve.fraction)
    axes.plot(x, curve.loss, color=color, linestyle=dash, label=style.short(label), zorder=3)
    if curve.band is not None:
        axes.fill_between(x, *curve.band, color=color, alpha=0.2, linewidth=0, zorder=2)
    for at, fraction, loss in zip(x, curve.fraction, curve.loss, strict=True):
        style.tip(axes, at, loss, f"{label}: {loss:.4f} at {fraction:.0%} of the budget")
    for fraction, before in curve.events:
        points.append((fraction, before))
        at = place(np.array([fraction]))
        style.tip(axes, at[0], before, f"{label}: event at {fraction:.0%} of the budget, loss {before:.4f}")
        axes.plot(at, [before], "d", color=color, markersize=8, markeredgecolor="white", zorder=4)
    return points


def along(scale: float) -> Callable[[Floats], Floats]:
    """Return a function from fractions of the budget to positions on an axis that ends at ``scale``."""
    return lambda fraction: scale * fraction


def finish_curves(axes: Axes, points: list[tuple[float, float]]) -> None:
    """Add events to the legend, label the loss axis, and limit it to losses after the steep start.

    Args:
        axes: The axes.
        points: What :func:`draw_curve` returned for all curves together, at least one point.
    """
    axes.plot([], [], "d", color=style.FAINT, markersize=8, linestyle="none", label="event")
    axes.set_ylim(*style.beyond_fall(points))
    axes.set_ylabel("validation loss (nats per token)")
