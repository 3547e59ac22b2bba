"""Decide when to grow by the slope of the loss (Shen et al., 2022): a stage lasts until it has flattened.

The paper trains a size until the slope of log loss over log compute has flattened to a constant. From there
on, a larger model gains more from the next FLOP. The constant depends on what grows, and not on the size. The
slope is computed only from the run's records up to the current step. So a run that is repeated or resumed
gets the same slope.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path

from nasgrow.config import LearningRate
from nasgrow.training.records import read_metrics

SPAN = 2.0
"""A slope is fitted to the points of the last part of training, over which compute grew by this factor."""
MIN_SLOPE_POINTS = 5
"""The least number of points from which a slope is computed."""

Curve = Sequence[tuple[float, float]]
"""Points (FLOPs, loss), in order of FLOPs."""


def slope_at_end(curve: Curve) -> float | None:
    """Return the slope d log loss / d log FLOPs at the end of a curve.

    It is fitted by least squares to the points since FLOPs were 1 / ``SPAN`` of the last. It is
    None if these are fewer than ``MIN_SLOPE_POINTS``, or if the curve starts later.
    """
    last = curve[-1][0] if curve else 0.0
    within = [(log(flops), log(loss)) for flops, loss in curve if SPAN * flops >= last]
    if len(within) < MIN_SLOPE_POINTS or SPAN * curve[0][0] > last:
        return None
    mean = sum(x for x, _ in within) / len(within)
    return sum((x - mean) * y for x, y in within) / sum((x - mean) ** 2 for x, _ in within)


def stage_until(folder: Path, aligned: float, rate: LearningRate) -> tuple[int, Curve]:
    """Return the stage of a run at an evaluation, and the curve of training loss over FLOPs in that stage.

    The stage is counted from 0. An event at the same step as the evaluation happens after it.

    The FLOPs are all those charged since the start of the run. In the first stage, the curve is that of the
    paper. In a later stage, it assumes that the grown model would have needed the FLOPs before the event to
    reach the same loss; the paper uses a measured constant instead. Records from before the learning rate has
    warmed up, or recovered from the event, are left out.

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
