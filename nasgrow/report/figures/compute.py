"""Loss over compute: schedules and fixed shapes on their way."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nasgrow.report import words
from nasgrow.report.figures import style
from nasgrow.report.naming import apart
from nasgrow.report.ranking import Contender
from nasgrow.report.trajectory import Trajectory


@style.styled
def loss_over_compute(
    schedules: Sequence[Contender], fixed: Sequence[tuple[str, Contender]], budget: int
) -> Figure | None:
    """Validation loss over compute, with events marked; None if no curve is there.

    Args:
        schedules: The best ones, in order.
        fixed: Fixed sizes with their names, the final shape first.
        budget: FLOPs of every run.
    """
    size, unit = words.unit(budget)
    figure = style.canvas(4.6)
    axes = figure.add_subplot()
    points: list[tuple[float, float]] = []

    def line(one: Contender, label: str, color: str, dash: object, mark: str) -> None:
        points.extend(draw_curve(axes, one.curve, budget / size, label, color, dash, mark))

    for index, (name, one) in enumerate(fixed):
        color = style.BASELINES[index % len(style.BASELINES)]
        line(one, f"fixed shape: {name}", color, "-", "s")
    names = apart([one.title for one in schedules])
    for index, (name, one) in enumerate(zip(names, schedules, strict=True)):
        color = style.SCHEDULES[index % len(style.SCHEDULES)]
        line(one, name, color, style.DASHES[index % len(style.DASHES)], "o")
    if not points:
        return None
    finish_curves(axes, points)
    axes.set_xlim(0, 1.01 * budget / size)
    axes.set_xlabel(f"compute ({unit})")
    style.legend_below(figure, axes)
    return figure


def draw_curve(
    axes: Axes, curve: Trajectory | None, scale: float, label: str, color: str, dash: object, mark: str
) -> list[tuple[float, float]]:
    """Draw a validation loss over ``scale`` times the fraction of the budget.

    Returns:
        Fraction and loss of all that was drawn; nothing without a curve.
    """
    if curve is None or not len(curve.loss):
        return []
    points = list(zip(curve.fraction.tolist(), curve.loss.tolist(), strict=True))
    name = style.short(label)
    axes.plot(curve.fraction * scale, curve.loss, color=color, linestyle=dash, label=name, zorder=3)
    if curve.final is not None:
        points.append((1.0, curve.final))
        axes.plot([scale], [curve.final], mark, color=color, markersize=6, clip_on=False, zorder=5)
    for fraction, before in curve.events:
        points.append((fraction, before))
        at = [fraction * scale]
        axes.plot(at, [before], "d", color=color, markersize=8, markeredgecolor="white", zorder=4)
    return points


def finish_curves(axes: Axes, points: list[tuple[float, float]]) -> None:
    """Say what diamonds are, and show what comes after the first fall of the curves drawn."""
    axes.plot([], [], "d", color=style.FAINT, markersize=8, linestyle="none", label="event")
    axes.set_ylim(*style.beyond_fall(points))
    axes.set_ylabel("validation loss (nats per token)")
