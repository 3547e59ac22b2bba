"""Draw one run: its loss over the budget with its events marked, above its parameter count."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nasgrow.names import short_name
from nasgrow.report.figures import style
from nasgrow.report.figures.steps import draw_steps
from nasgrow.training.records import read_metrics, read_run
from nasgrow.training.run import Run

FALL = 0.1
"""The part of the training so far in which the curve may leave the figure at the top.

Its first steep fall would flatten the rest.
"""

TRAINING, VALIDATION, GROWTH = "#56b4e9", "#00446b", "#d55e00"
"""Two blues of different lightness and an orange, distinct for the colour-blind and in grey."""


def curve_figure(run: Run, records: Iterable[dict[str, Any]]) -> Figure:
    """Draw a run from its metrics records; it need not have finished."""
    train, looked, events, final = [], [], [], None
    for record in records:
        at = record["fraction"]
        match record["kind"]:
            case "train":
                train.append((at, record["loss"]))
            case "evaluation":
                looked.append((at, record["validation"]))
            case "event":
                events.append(at)
            case "final":
                looked.append((at, record.get("evaluation")))  # same text as evaluations
                final = record["validation"]
    train, looked = ([(x, y) for x, y in points if y is not None] for points in (train, looked))

    figure = Figure(figsize=(5.6, 4.8), dpi=150, layout="constrained")
    axes, stairs = figure.subplots(2, 1, sharex=True, height_ratios=[2.6, 1])
    if train:
        axes.plot(*zip(*train, strict=True), color=TRAINING, linewidth=1, label="training")
    if looked:
        axes.plot(*zip(*looked, strict=True), color=VALIDATION, marker="o", markersize=3, label="validation")
    for index, at in enumerate(events):
        label = "growth" if index == 0 else None
        axes.axvline(at, color=GROWTH, linestyle="--", linewidth=1, label=label)
    if train or looked:
        points = [*train, *looked]
        axes.set_ylim(*style.beyond_fall(points, FALL * max(at for at, _ in points)))
        axes.legend(frameon=False, loc="upper right")
    schedule = run.schedule
    name = style.wrapped(short_name(schedule), 64, lines=2)
    loss = "no final loss" if final is None else f"final validation loss {final:.4f}"
    axes.set_title(f"{name}\n{loss}", fontsize="medium")
    axes.set_ylabel("loss (nats per token)")
    draw_steps(stairs, schedule, run.variant, VALIDATION)
    stairs.set_xlabel("budget spent")
    stairs.set_ylabel("parameters")
    for panel in (axes, stairs):
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def draw_curve(folder: Path, to: Path) -> None:
    """Write the figure of the run in ``folder`` to the image file ``to``."""
    curve_figure(read_run(folder), read_metrics(folder)).savefig(to)
