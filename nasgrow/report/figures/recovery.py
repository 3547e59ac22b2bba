"""Draw the effect of events on logits and loss, and the budget until the loss has recovered."""

from __future__ import annotations

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nasgrow.report.figures import style

SMALLEST_CHANGE = 1e-9
"""The lower limit of drawn changes: a logarithmic axis has no zero."""


LEAST_JUMP = 1e-6
"""The smallest jump of the loss that is drawn; smaller ones are rounding."""


@style.styled
def recovery(events: pd.DataFrame) -> Figure:
    """Draw three panels: the change of logits at each event, the jump of the loss, the recovery.

    The first panel is left out if no event has recorded a change, the second if the loss never
    jumps. In the third, an event without recovery is drawn at the budget left after it.

    Args:
        events: Events as in ``Records.events``, at least one.
    """
    at = events["fraction"].astype(float)
    change = _numbers(events["change"])
    jump = _numbers(events["loss_after"]) - _numbers(events["loss_before"])
    known = [bool(change.notna().any()), bool(jump.abs().max() > LEAST_JUMP)]
    figure = style.canvas(1.3 + 1.45 * (1 + sum(known)))
    panels = iter(figure.subplots(1 + sum(known), 1, sharex=True, squeeze=False).flat)
    if known[0]:
        _change(next(panels), at, change)
    if known[1]:
        _jump(next(panels), at, jump)
    below = next(panels)
    _made_up(below, at, _numbers(events["recovery"]))
    below.set_xlim(0, 1)
    style.percent(below)
    below.set_xlabel("budget spent at the event")
    return figure


def _numbers(column: pd.Series) -> pd.Series:
    """Return a column as floats, with infinities as NaN."""
    return column.astype(float).replace([np.inf, -np.inf], np.nan)


def _change(axes: Axes, at: pd.Series, change: pd.Series) -> None:
    change = change.clip(lower=SMALLEST_CHANGE)
    style.cloud(axes, at, change, "o", color=style.SCHEDULES[0])
    axes.axhline(1e-4, color=style.SCHEDULES[1], linestyle="--", linewidth=1.2)
    axes.set_yscale("log")
    decades = range(
        int(np.floor(np.log10(change.min()))), 1 + int(np.ceil(np.log10(max(change.max(), 1e-4))))
    )
    style.plain_log(axes.yaxis, [10.0**power for power in decades])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}")
    axes.set_title("Largest relative change of a logit (dashed: more than rounding)")


def _jump(axes: Axes, at: pd.Series, jump: pd.Series) -> None:
    style.cloud(axes, at, jump, "o", color=style.SCHEDULES[0])
    reach = 1.2 * float(jump.abs().max())
    axes.set_ylim(-reach, reach)
    axes.set_title("Jump of the validation loss (nats per token)")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.1g}")


def _made_up(axes: Axes, at: pd.Series, took: pd.Series) -> None:
    never = took.isna()
    # Without recovery, the budget left is a lower bound of the time that it takes.
    percent = 100 * took.where(~never, 1 - at)
    blue, red = style.SCHEDULES[:2]
    style.cloud(axes, at[~never], percent[~never], "o", color=blue, label="back below")
    if never.any():
        style.cloud(axes, at[never], percent[never], "^", color=red, label="not within the budget left")
        axes.legend(loc="upper right")
    axes.set_title("Budget until an evaluation is below the loss before the event (%)")
    axes.set_ylim(0, 1.15 * max(1.0, percent.max()))
