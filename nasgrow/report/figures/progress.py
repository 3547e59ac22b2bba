"""Draw the progress of a search, and the Pareto front of its two objectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nasgrow.report import words
from nasgrow.report.figures import style
from nasgrow.report.load import Trial, in_order

BELOW_EDGE = 0.025
"""The distance of crosses from the upper edge, as a share of the vertical axis: above all losses shown."""


@style.styled
def search_progress(trials: Sequence[Trial], baselines: Sequence[tuple[str, float]]) -> Figure:
    """Draw the loss of each trial and the best so far over executed compute, with fixed shapes as reference.

    Args:
        trials: All trials of the search, at least one with a loss. A pruned one is a cross at its
            last evaluation. Others without a loss count for their compute only.
        baselines: Name and best loss of each fixed shape; may be empty.
    """
    trials = in_order(trials)
    spent = np.cumsum([trial.record.executed for trial in trials])
    size, unit = words.unit(float(spent[-1]))
    done = [(x / size, trial) for x, trial in zip(spent, trials, strict=True) if trial.loss is not None]
    figure = style.canvas(4.8)
    axes = figure.add_subplot()
    losses = [trial.loss for _, trial in done if trial.loss is not None]
    for grows, mark, label in ((True, "o", "schedule that grows"), (False, "s", "schedule without growth")):
        own = [(x, trial) for x, trial in done if trial.grows == grows]
        if own:
            x, y = [x for x, _ in own], [trial.loss or 0.0 for _, trial in own]
            tips = [f"{trial.title}: {trial.loss:.4f}" for _, trial in own]
            style.cloud(axes, x, y, mark, tips, color=style.SCHEDULES[0 if grows else 3], label=label)
    axes.step(
        [x for x, _ in done],
        np.minimum.accumulate(losses),
        where="post",
        color=style.SCHEDULES[0],
        linewidth=2.2,
        label="best so far",
    )
    low, high = style.scale(losses, [loss for _, loss in baselines])
    for index, (name, loss) in enumerate(baselines):
        color = style.BASELINES[index % len(style.BASELINES)]
        if not low <= loss <= high:
            style.off_scale(axes, name, loss, above=loss > high, color=color)
            continue
        axes.axhline(
            loss,
            color=color,
            linestyle=style.DASHES[1 + index % 4],
            linewidth=1.4,
            label=f"fixed shape: {style.short(name)}",
        )
    axes.set_ylim(low, high)
    _pruned(axes, [(x / size, trial) for x, trial in zip(spent, trials, strict=True)])
    axes.set_xlabel(f"compute executed by the search ({unit})")
    axes.set_ylabel("validation loss (nats per token)")
    style.legend_below(figure, axes, columns=3)
    return figure


def _pruned(axes: Axes, trials: Sequence[tuple[float, Trial]]) -> None:
    """Draw pruned trials at their last evaluated loss, or just below the upper edge if that is higher.

    Args:
        axes: The axes to draw on.
        trials: The compute executed up to the end of each trial, and the trial. Those that were not
            pruned, or never evaluated, are skipped.
    """
    own = [(x, trial) for x, trial in trials if trial.record.status == "pruned" and trial.record.evaluations]
    if own:
        last = [trial.record.evaluations[-1] for _, trial in own]
        tips = [
            f"{trial.title}: pruned at {at:.0%} of its budget, loss {loss:.4f}"
            for (_, trial), (at, loss) in zip(own, last, strict=True)
        ]
        low, high = axes.get_ylim()
        edge = high - BELOW_EDGE * (high - low)
        y = [min(loss, edge) for _, loss in last]
        label = "pruned, last evaluation"
        style.cloud(axes, [x for x, _ in own], y, "x", tips, color=style.FAINT, label=label)


@style.styled
def pareto(trials: Sequence[Trial], objective: str) -> Figure:
    """Draw the loss of finished trials against the second objective, and the Pareto front.

    Args:
        trials: The trials, at least one of them finished.
        objective: The name of the second objective, as in the study file.
    """
    names = {
        "parameters": "parameters",
        "inference_flops": "inference compute (FLOP per token)",
        "seconds": "seconds of training",
    }
    own = [(cost(trial, objective), trial.loss, trial.title) for trial in trials if trial.loss is not None]
    points = sorted((spent, loss) for spent, loss, _ in own)
    figure = style.canvas(4.2)
    axes = figure.add_subplot()
    x, y, _ = zip(*own, strict=True)
    tips = [f"{title}: {loss:.4f}, {spent:,.0f} {objective}" for spent, loss, title in own]
    style.cloud(axes, x, y, "o", tips, color=style.FAINT, label="trial")
    axes.plot(*zip(*front(points), strict=True), "o-", color=style.SCHEDULES[0], label="Pareto front")
    axes.set_xlabel(names[objective])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylabel("validation loss (nats per token)")
    style.legend_below(figure, axes)
    return figure


def cost(trial: Trial, objective: str) -> float:
    """Return the value of a trial's second objective."""
    return trial.record.objective(objective)


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front of (cost, loss) points, which must be sorted by cost, then loss."""
    found: list[tuple[float, float]] = []
    for point in points:
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return found
