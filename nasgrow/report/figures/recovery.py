"""What events do to the loss, and how long it takes to make up for it."""

from __future__ import annotations

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from matplotlib.figure import Figure

from nasgrow.report.figures import style

LEAST = 1e-9
"""Changes below this are drawn there: a logarithmic axis has no zero."""


@style.styled
def recovery(events: pd.DataFrame) -> Figure:
    """Change of the function at each event, jump of the loss, and the time until that is made up for."""
    figure = style.canvas(5.6)
    above, middle, below = figure.subplots(3, 1, sharex=True)
    at = events["fraction"].astype(float)

    change = events["change"].astype(float).clip(lower=LEAST)
    style.cloud(above, at, change, "o", color=style.SCHEDULES[0])
    above.axhline(1e-4, color=style.SCHEDULES[1], linestyle="--", linewidth=1.2)
    above.set_yscale("log")
    decades = range(
        int(np.floor(np.log10(change.min()))), 1 + int(np.ceil(np.log10(max(change.max(), 1e-4))))
    )
    style.plain_log(above.yaxis, [10.0**power for power in decades])
    above.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}")
    above.set_title("Largest relative change of a logit (dashed: more than rounding)")

    jump = (events["loss_after"] - events["loss_before"]).astype(float)
    style.cloud(middle, at, jump, "o", color=style.SCHEDULES[0])
    reach = max(1e-6, 1.2 * float(jump.abs().max()))
    middle.set_ylim(-reach, reach)
    middle.set_title("Jump of the validation loss (nats per token)")
    middle.yaxis.set_major_formatter(lambda value, _: f"{value:.1g}")

    took = events["recovery"].astype(float)
    style.cloud(below, at, 100 * took, "o", color=style.SCHEDULES[0], label="back below")
    never = took.isna()
    if never.any():
        # What is left of the budget is the least that it would have taken.
        style.cloud(
            below,
            at[never],
            100 * (1 - at[never]),
            "^",
            color=style.SCHEDULES[1],
            label="not within the budget left",
        )
        below.legend(loc="upper right")
    below.set_title("Budget until an evaluation is below the loss before the event (%)")
    below.set_ylim(0, 1.15 * max(line.get_ydata().max() for line in below.get_lines()))
    below.set_xlim(0, 1)
    style.percent(below)
    below.set_xlabel("budget spent at the event")
    return figure
