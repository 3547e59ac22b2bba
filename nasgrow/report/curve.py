"""The loss of one run over its compute, with its events marked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nasgrow.training.records import read_metrics

FALL = 0.1
"""The part of the curve, from its start, whose steep fall may leave the figure: the rest must be readable."""

TRAINING, VALIDATION, GROWTH = "#56b4e9", "#00446b", "#d55e00"
"""Two blues of different lightness and an orange: told apart with any colour vision, and in grey."""


def curve_figure(records: Iterable[dict[str, Any]]) -> Figure:
    """The figure of a run's records, finished or not."""
    train, looked, events, final = [], [], [], None
    for record in records:
        charged = record["charged"]
        match record["kind"]:
            case "train":
                train.append((charged, record["loss"]))
            case "evaluation":
                looked.append((charged, record["validation"]))
            case "final":
                looked.append((charged, record.get("evaluation")))  # on the text of the others
                final = record["validation"]
            case "event":
                events.append(charged)
    train, looked = ([(x, y) for x, y in points if y is not None] for points in (train, looked))

    figure = Figure(figsize=(5.6, 3.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    if train:
        axes.plot(*zip(*train, strict=True), color=TRAINING, linewidth=1, label="training")
    if looked:
        axes.plot(*zip(*looked, strict=True), color=VALIDATION, marker="o", markersize=3, label="validation")
    for index, charged in enumerate(events):
        label = "growth" if index == 0 else None
        axes.axvline(charged, color=GROWTH, linestyle="--", linewidth=1, label=label)
    if train or looked:
        axes.set_ylim(*_limits([*train, *looked]))
        axes.legend(frameon=False, loc="upper right")
    axes.set_title(
        "no final loss" if final is None else f"final validation loss {final:.4f}", fontsize="medium"
    )
    axes.set_xlabel("compute (training FLOPs)")
    axes.set_ylabel("loss (nats per token)")
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 0), useMathText=True)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_curve(folder: Path, to: Path) -> None:
    """Draw the curve of the run in ``folder`` into the file ``to``."""
    curve_figure(read_metrics(folder)).savefig(to)


def _limits(points: list[tuple[float, float]]) -> tuple[float, float]:
    """The range of losses that holds the curve after its first fall."""
    fallen = FALL * max(charged for charged, _ in points)
    low = min(loss for _, loss in points)
    high = max(loss for charged, loss in points if charged >= fallen)
    margin = 0.05 * (high - low) or 0.1
    return low - margin, high + margin
