"""Draw the parameter count of a schedule over the budget, as a staircase."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from nasgrow.flops import parameter_count
from nasgrow.report.figures import style
from nasgrow.schedule import Schedule
from nasgrow.shape import Variant


def steps(schedule: Schedule, variant: Variant) -> tuple[list[float], list[int]]:
    """Return the fraction of the budget at which each stage begins, and its number of parameters."""
    times = [0.0, *(event.at for event in schedule.events)]
    return times, [parameter_count(shape, variant) for shape in schedule.shapes]


def draw_steps(axes: Axes, schedule: Schedule, variant: Variant, color: str) -> None:
    """Draw the parameter count of a schedule over the fraction of the budget.

    Set the limits of both axes and the format of their ticks too.
    """
    times, counts = steps(schedule, variant)
    x, y = [*times, 1.0], [*counts, counts[-1]]
    axes.fill_between(x, y, step="post", color=color, alpha=0.25, linewidth=0)
    axes.plot(x, y, drawstyle="steps-post", color=color)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.15 * max(counts))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    style.percent(axes)
