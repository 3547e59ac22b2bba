"""When to grow, by the slope of the loss (Shen et al., 2022): a stage lasts until it has flattened.

The paper trains a size until the slope of its loss over compute, both logarithmic, has flattened to a
constant that depends on what grows, and not on the size: there a larger model makes more of the next FLOP.
The slope is computed from the run's records up to the current step alone. So a run that is trained again, or
resumed, gets the same slope.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path

from nasgrow.config import LearningRate
from nasgrow.training.records import read_metrics

SPAN = 2.0
"""A slope is that of the line through all points of the last factor of compute."""
MIN_SLOPE_POINTS = 5
"""The fewest points that make a slope."""

Curve = Sequence[tuple[float, float]]
"""Points (FLOPs, loss) in their order."""


def slope_at_end(curve: Curve) -> float | None:
    """The slope d log loss / d log FLOPs over the last factor of compute; None before there is so much."""
    last = curve[-1][0] if curve else 0.0
    within = [(log(flops), log(loss)) for flops, loss in curve if SPAN * flops >= last]
    if len(within) < MIN_SLOPE_POINTS or SPAN * curve[0][0] > last:
        return None
    mean = sum(x for x, _ in within) / len(within)
    return sum((x - mean) * y for x, y in within) / sum((x - mean) ** 2 for x, _ in within)


def stage_until(folder: Path, aligned: float, rate: LearningRate) -> tuple[int, Curve]:
    """The stage that a run was in at an evaluation, and its training loss over all FLOPs charged until then.

    Of the first stage that curve is the paper's; of a later one it takes the FLOPs before the event for what
    the grown model would have needed to come as far, where the paper has a measured constant. Records from
    before the learning rate has warmed up, or recovered from the event, are left out.

    Args:
        folder: The run's folder.
        aligned: The fraction of the budget at which the evaluation was due.
        rate: The run's learning rate.
    """
    stage, warm, before = 0, rate.warmup, 0.0
    curve: list[tuple[float, float]] = []
    for record in read_metrics(folder):
        if record["kind"] == "evaluation" and record["aligned"] >= aligned:
            break
        if record["kind"] == "event":
            stage, warm, curve = stage + 1, record["fraction"] + rate.rewarm, []
        if record["kind"] == "train":
            if before >= warm and record["loss"]:  # the mean since the record before; null if no number
                curve.append((record["charged"], record["loss"]))
            before = record["fraction"]
    return stage, curve
