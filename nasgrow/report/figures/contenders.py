"""Draw the losses of fixed shapes over learning rates, and of confirmed candidates over fresh seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from nasgrow.report.figures import style
from nasgrow.report.load import Trial
from nasgrow.report.naming import side_by_side
from nasgrow.report.ranking import Contender
from nasgrow.report.statistics import mean_of
from nasgrow.study.baselines import TunedBaseline


@style.styled
def tuning(sizes: Sequence[TunedBaseline], schedules: Sequence[Trial]) -> Figure:
    """Draw the loss of fixed shapes and of schedules over the learning rates tried.

    Args:
        sizes: The fixed shapes, the final one first.
        schedules: The finished trials that grow; may be empty.
    """
    figure = style.canvas(4.0)
    axes = figure.add_subplot()
    own = [(trial.record.learning_rate, trial.loss) for trial in schedules]
    if own:
        x, y = zip(*own, strict=True)
        tips = [
            f"{trial.title}: {loss:.4f} at rate {rate:.3g}"
            for trial, (rate, loss) in zip(schedules, own, strict=True)
        ]
        style.cloud(axes, x, y, "o", tips, color=style.SCHEDULES[0], label="schedules that grow", zorder=1)
    every = [[t.loss for t in tuned.tried if t.loss is not None] for tuned in sizes]
    own_losses = [loss for _, loss in own if loss is not None]
    if own_losses:
        # A shape far off the scale would squeeze all others together: the limits leave it out.
        axes.set_ylim(style.scale(own_losses, [loss for losses in every for loss in losses]))
    low, high = axes.get_ylim() if own_losses else (-math.inf, math.inf)
    for index, tuned in enumerate(sizes):
        done = [(t.learning_rate, t.loss) for t in tuned.tried if t.loss is not None]
        if done:
            x, y = zip(*done, strict=True)
            color, mark = style.BASELINES[index % 5], style.MARKERS[1 + index % 6]
            if min(y) > high or max(y) < low:
                style.off_scale(axes, tuned.size.name, min(y), above=min(y) > high, color=color)
                continue
            axes.plot(
                x,
                y,
                color=color,
                marker=mark,
                markersize=6,
                label=f"fixed shape: {style.short(tuned.size.name)}",
            )
            for rate, loss in done:
                style.tip(axes, rate, loss, f"fixed shape {tuned.size.name}: {loss:.4f} at rate {rate:.3g}")
    rates = sorted({t.learning_rate for tuned in sizes for t in tuned.tried} | {x for x, _ in own})
    axes.set_xscale("log")
    style.plain_log(axes.xaxis, rates if len(rates) <= 9 else rates[:: -(-len(rates) // 9)])
    axes.set_xlabel("peak learning rate")
    axes.set_ylabel("validation loss (nats per token)")
    style.legend_below(figure, axes, columns=3)
    return figure


@style.styled
def confirmations(contenders: Sequence[Contender]) -> Figure:
    """Draw the test losses of each candidate's fresh seeds, with their mean and its 95% interval."""
    shown = list(contenders)[::-1]
    names = side_by_side([one.origin for one in shown])
    figure = style.canvas(1.2 + 0.5 * len(shown))
    axes = figure.add_subplot()
    for place, one in enumerate(shown):
        color = style.SCHEDULES[0] if one.trial.grows else style.BASELINES[1]
        estimate = mean_of(one.losses)
        if estimate.low is not None and estimate.high is not None:
            axes.plot([estimate.low, estimate.high], [place, place], color=color, linewidth=5, alpha=0.3)
        axes.plot(one.losses, [place] * len(one.losses), "o", color=color, markersize=5, alpha=0.75)
        axes.plot([estimate.value], [place], "|", color=style.INK, markersize=17, markeredgewidth=2)
        for seed, loss in zip(one.seeds, one.losses, strict=False):
            style.tip(
                axes, loss, place, f"{names[place]}, seed {seed}: {loss:.4f}; mean {estimate.value:.4f}"
            )
    axes.set_yticks(range(len(shown)), [style.wrapped(name, 36) for name in names])
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("test loss (nats per token)")
    return figure
