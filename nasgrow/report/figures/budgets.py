"""Draw the loss of a fixed shape over several budgets, with the best schedule at the study's budget."""

from __future__ import annotations

import math
from statistics import fmean

from matplotlib.figure import Figure

from nasgrow.report import words
from nasgrow.report.budgets import EqualLoss, share
from nasgrow.report.figures import style
from nasgrow.report.ranking import Contender
from nasgrow.report.statistics import loss, mean_of

TINY = 0.06
"""The shortest arrow that is drawn, as a fraction of the axis; the mark would hide a shorter one."""


@style.styled
def loss_over_budget(ours: Contender, rival: str, equal: EqualLoss, budget: int, split: str) -> Figure:
    """Draw the fully decayed losses of a rival over its budget, and the schedule's beside them.

    Args:
        ours: The schedule, trained at the study's budget.
        rival: The rival's name.
        equal: The rival's losses under each budget, and the budget of equal loss.
        budget: The study's budget in FLOPs.
        split: The split on which the losses were measured.
    """
    size, unit = words.unit(budget)
    figure = style.canvas(3.8)
    axes = figure.add_subplot()
    compute = [rung.times * budget / size for rung in equal.rungs]
    means = [loss(rung.losses) for rung in equal.rungs]
    axes.plot(compute, means, "-", color=style.BASELINES[0], marker="s", label=style.short(rival, 60))
    seeds = [[fmean(one) for one in rung.losses.values()] for rung in equal.rungs]
    least, most = ([end(losses) for losses in seeds] for end in (min, max))
    axes.fill_between(compute, least, most, color=style.BASELINES[0], alpha=0.15, linewidth=0, zorder=0)
    for x, rung, losses, mean in zip(compute, equal.rungs, seeds, means, strict=True):
        axes.plot([x] * len(losses), losses, "o", color=style.FAINT, markersize=4, zorder=1)
        many = words.many(len(losses), "seed")
        style.tip(axes, x, mean, f"{rival}, {rung.times:.4g} times the budget: {mean:.4f}, {many}")
    own, at = mean_of(ours.losses), budget / size
    color = style.SCHEDULES[0]
    axes.plot([at] * len(ours.losses), ours.losses, "o", color=color, markersize=4, alpha=0.5, zorder=1)
    name = ours.origin.record.title
    axes.plot([at], [own.value], "D", color=color, markersize=8, zorder=4, label=style.short(name))
    style.tip(axes, at, own.value, f"{name}: {own.value:.4f}, {words.many(len(ours.losses), 'seed')}")
    if equal.times is not None:
        needed, won = equal.times * at, equal.times > 1
        apart = abs(math.log(equal.times)) > TINY * math.log(compute[-1] / compute[0])
        if apart:
            axes.annotate(
                "",
                (needed, own.value),
                (at, own.value),
                arrowprops={"arrowstyle": "<->", "color": color, "shrinkA": 0, "shrinkB": 0},
            )
        # Losses fall to the right, so the label has room at the lower left or at the upper right.
        axes.annotate(
            f"{share(equal.times):.0%} saved" if won else "none saved",
            (math.sqrt(at * needed), own.value),
            (0 if apart else -14 if won else 14, -10 if won else 10),
            textcoords="offset points",
            ha="center" if apart else "right" if won else "left",
            va="top" if won else "bottom",
            color=color,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
    axes.set_xscale("log")
    style.plain_log(axes.xaxis, compute)
    axes.margins(0.08, 0.15)
    axes.set_xlabel(f"training compute ({unit})")
    axes.set_ylabel(f"{split} loss (nats per token)")
    style.legend_below(figure, axes)
    return figure
