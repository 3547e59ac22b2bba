"""Draw the size of each of the six dimensions over the budget, for the best schedules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nasgrow.report.figures import style
from nasgrow.report.load import Trial
from nasgrow.report.naming import side_by_side
from nasgrow.shape import Shape

DIMENSION_NAMES = {
    "hidden": "hidden size",
    "layers": "layers",
    "mlp": "MLP width",
    "heads": "heads",
    "key": "key size",
    "value": "value size",
}


def sizes(shape: Shape) -> dict[str, float]:
    """Return the six sizes of a shape: MLP and heads as means over layers, key and value over heads."""
    heads = [head for layer in shape.layers for head in layer.heads]
    return {
        "hidden": shape.hidden,
        "layers": len(shape.layers),
        "mlp": fmean(layer.mlp for layer in shape.layers),
        "heads": fmean(layer.head_count for layer in shape.layers),
        "key": fmean(key for key, _ in heads),
        "value": fmean(value for _, value in heads),
    }


def unlike(schedules: Iterable[Trial]) -> list[Trial]:
    """Drop trials that have the same shapes at the same times as an earlier trial."""
    found: dict[object, Trial] = {}
    for trial in schedules:
        times = tuple(event.at for event in trial.schedule.events)
        found.setdefault((trial.schedule.shapes, times), trial)
    return list(found.values())


@style.styled
def timeline(schedules: Sequence[Trial]) -> Figure:
    """Draw the sizes of each schedule over the budget, a panel for each dimension that varies.

    At least one must vary, between stages or between schedules.
    """
    grown = [name for name in DIMENSION_NAMES if _differs(name, schedules)]
    columns = min(3, len(grown)) if len(grown) != 4 else 2
    rows = -(-len(grown) // columns)
    figure = style.canvas(0.9 + 1.95 * rows)
    panels = [figure.add_subplot(rows, columns, place + 1) for place in range(len(grown))]
    names = side_by_side(schedules)
    for panel, name in zip(panels, grown, strict=True):
        for index, trial in enumerate(schedules):
            times = [0.0, *(event.at for event in trial.schedule.events), 1.0]
            values = [sizes(shape)[name] for shape in trial.schedule.shapes]
            panel.plot(
                times,
                [*values, values[-1]],
                drawstyle="steps-post",
                color=style.SCHEDULES[index % len(style.SCHEDULES)],
                # The best line is on top and the thinnest, so that lines that coincide all stay visible.
                linewidth=1.6 + 1.5 * index,
                zorder=10 - index,
                solid_capstyle="butt",
                label=style.short(names[index]),
            )
            for at, value in zip(times, values, strict=False):
                style.tip(
                    panel, at, value, f"{names[index]}: {DIMENSION_NAMES[name]} {value:.4g} from {at:.0%} on"
                )
        panel.set_title(DIMENSION_NAMES[name])
        panel.set_xlim(0, 1)
        most = max(sizes(shape)[name] for trial in schedules for shape in trial.schedule.shapes)
        panel.set_ylim(0, 1.15 * most)
        panel.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        style.percent(panel)
    for panel in panels[-columns:]:
        panel.set_xlabel("budget spent")
    if len(schedules) > 1:
        style.legend_below(figure, panels[0])
    return figure


def _differs(name: str, schedules: Sequence[Trial]) -> bool:
    """Return whether a size varies between the stages of the schedules, or between schedules."""
    return len({sizes(shape)[name] for trial in schedules for shape in trial.schedule.shapes}) > 1
