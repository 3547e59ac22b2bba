"""When each of the six dimensions grows in the best schedules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from matplotlib.figure import Figure

from nasgrow.report.figures import style
from nasgrow.report.load import Trial
from nasgrow.report.naming import apart
from nasgrow.shape import Shape

DIMENSIONS = {
    "hidden": "hidden size",
    "layers": "layers",
    "mlp": "MLP width",
    "heads": "heads",
    "key": "key size",
    "value": "value size",
}


def sizes(shape: Shape) -> dict[str, float]:
    """The six sizes of a shape; those within layers as means over layers, those of heads over heads."""
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
    """The first of those with the same sizes at the same times, whatever else they differ in."""
    found: dict[object, Trial] = {}
    for trial in schedules:
        times = tuple(event.at for event in trial.schedule.events)
        found.setdefault((trial.schedule.shapes, times), trial)
    return list(found.values())


@style.styled
def timeline(schedules: Sequence[Trial]) -> Figure:
    """The sizes of each schedule over the budget, a panel for each dimension."""
    figure = style.canvas(4.8)
    panels = figure.subplots(2, 3, sharex=True)
    names = apart([trial.title for trial in schedules])
    for panel, (name, title) in zip(panels.flat, DIMENSIONS.items(), strict=True):
        for index, trial in enumerate(schedules):
            times = [0.0, *(event.at for event in trial.schedule.events), 1.0]
            values = [sizes(shape)[name] for shape in trial.schedule.shapes]
            panel.plot(
                times,
                [*values, values[-1]],
                drawstyle="steps-post",
                color=style.SCHEDULES[index % len(style.SCHEDULES)],
                # The best lies on top and is the thinnest: lines that coincide all remain visible.
                linewidth=1.6 + 1.5 * index,
                zorder=10 - index,
                solid_capstyle="butt",
                label=style.short(names[index]),
            )
        panel.set_title(title)
        panel.set_xlim(0, 1)
        panel.set_ylim(0, 1.15 * max(max(line.get_ydata()) for line in panel.get_lines()))
        panel.yaxis.get_major_locator().set_params(integer=True, nbins=5)
        style.percent(panel)
    for panel in panels[1]:
        panel.set_xlabel("budget spent")
    if len(schedules) > 1:
        style.legend_below(figure, panels.flat[0])
    return figure
