"""Draw the parameter counts of the best schedules over the budget, a panel for each schedule."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from nasgrow.report.figures import style
from nasgrow.report.figures.steps import draw_steps, steps
from nasgrow.report.load import Trial
from nasgrow.report.naming import side_by_side
from nasgrow.shape import Variant

COLUMNS = 3
"""The most panels in a row."""


@style.styled
def staircases(trials: Sequence[Trial], variant: Variant) -> Figure:
    """Draw the parameter count of each schedule over the budget, a panel for each schedule."""
    columns = min(COLUMNS, len(trials))
    rows = -(-len(trials) // columns)
    figure = style.canvas(0.4 + 1.75 * rows)
    panels = [figure.add_subplot(rows, columns, place + 1) for place in range(len(trials))]
    most = max(count for trial in trials for count in steps(trial.schedule, variant)[1])
    for index, (panel, trial, name) in enumerate(zip(panels, trials, side_by_side(trials), strict=True)):
        draw_steps(panel, trial.schedule, variant, style.SCHEDULES[index % len(style.SCHEDULES)])
        panel.set_ylim(0, 1.1 * most)
        panel.set_title(style.wrapped(name, 84 // columns), fontsize=9, fontweight="normal")
        for at, count in zip(*steps(trial.schedule, variant), strict=True):
            style.tip(panel, at, count, f"{name}: {count:,} parameters from {at:.0%} of the budget on")
        if index % columns == 0:
            panel.set_ylabel("parameters")
        if index + columns >= len(trials):
            panel.set_xlabel("budget spent")
    return figure
