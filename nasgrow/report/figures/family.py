"""Draw a family: loss against size, where members branch off, and the compute that sharing saves."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nasgrow.report import words
from nasgrow.report.family.read import FamilyRecords, Model
from nasgrow.report.figures import style
from nasgrow.report.figures.compute import along, draw_curve, finish_curves
from nasgrow.report.statistics import mean_of

LOOKS = {
    True: ("family", style.SCHEDULES[0], "-", "o"),
    False: ("from scratch", style.BASELINES[1], "--", "s"),
}
"""Name, colour, line style and marker of members (True) and of sizes from scratch (False)."""


@style.styled
def loss_by_size(found: FamilyRecords) -> Figure | None:
    """Draw test loss over parameters and over inference compute; None without a result."""
    if not any(size.member or size.scratch for size in found.sizes):
        return None
    figure = style.canvas(3.9)
    first = figure.add_subplot(1, 2, 1)
    second = figure.add_subplot(1, 2, 2, sharey=first)
    _by_size(first, found, [size.parameters for size in found.sizes])
    _by_size(second, found, [size.inference_flops for size in found.sizes])
    first.set_xlabel("parameters")
    second.set_xlabel("inference compute (FLOP per token)")
    first.set_ylabel("test loss (nats per token)")
    second.tick_params(axis="y", labelleft=False)
    style.legend_below(figure, first)
    return figure


def _by_size(axes: Axes, found: FamilyRecords, places: list[int]) -> None:
    for grown, (name, color, dash, mark) in LOOKS.items():
        models = [
            (at, size.member if grown else size.scratch) for at, size in zip(places, found.sizes, strict=True)
        ]
        known: list[tuple[int, Model]] = [(at, model) for at, model in models if model is not None]
        estimates = [(at, mean_of(model.test)) for at, model in known]
        axes.plot(
            [at for at, _ in estimates],
            [estimate.value for _, estimate in estimates],
            color=color,
            linestyle=dash,
            marker=mark,
            markerfacecolor=color if grown else "white",
            label=name,
            zorder=3,
        )
        for at, estimate in estimates:
            if estimate.low is not None and estimate.high is not None:
                axes.plot([at, at], [estimate.low, estimate.high], color=color, linewidth=5, alpha=0.3)
    axes.set_xscale("log")
    style.plain_log(axes.xaxis, _told_apart([float(at) for at in places]))
    axes.xaxis.set_major_formatter(lambda value, _: words.short_count(value))
    axes.margins(x=0.12)


def _told_apart(places: list[float]) -> list[float]:
    """Drop positions, of sorted ones on a logarithmic axis, whose labels would overlap the one before."""
    apart = 0.16 * math.log(places[-1] / places[0])
    found: list[float] = []
    for place in places:
        if not found or math.log(place / found[-1]) >= apart:
            found.append(place)
    return found


@style.styled
def branches(found: FamilyRecords) -> Figure | None:
    """Draw the validation loss of each member over compute; None without a curve.

    The curves of two members coincide until the event at which they branch.
    """
    size, unit = words.unit(found.family.budget)
    figure = style.canvas(4.3)
    axes = figure.add_subplot()
    points: list[tuple[float, float]] = []
    for one in reversed(found.sizes):
        curve = one.member.curve if one.member else None
        look = style.SCHEDULES[one.index % 5], style.DASHES[one.index % 5]
        label = f"size {one.index + 1}: {words.count(one.parameters)} parameters"
        points += draw_curve(axes, curve, along(found.family.budget / size), label, *look)
    if not points:
        return None
    finish_curves(axes, points)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"compute charged to a member ({unit})")
    style.legend_below(figure, axes)
    return figure


@style.styled
def cost(found: FamilyRecords) -> Figure:
    """Draw the compute of training all sizes from scratch, and with a shared prefix."""
    size, unit = words.unit(found.scratch)
    family = found.family
    bars = {
        "from scratch": [family.charged(part) for part in family.parts if not part.grown],
        "family, prefix shared": [family.own_flops(index) for index in range(len(found.sizes))],
    }
    figure = style.canvas(2.3)
    axes = figure.add_subplot()
    for place, lengths in enumerate(bars.values()):
        left = 0.0
        for index, length in enumerate(lengths):
            color = style.SCHEDULES[index % 5]
            label = f"size {index + 1}" if place == 0 else None
            axes.barh(
                place, length / size, left=left, height=0.55, color=color, edgecolor="white", label=label
            )
            left += length / size
        axes.text(left, place, f" {words.compute(sum(lengths))}", va="center", color=style.INK)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.16 * found.scratch / size)
    axes.set_xlabel(f"compute for one model of each size ({unit})")
    style.legend_below(figure, axes, columns=min(5, len(found.sizes)))
    return figure
