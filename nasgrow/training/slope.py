"""When to grow, by the slope of the loss (Shen et al., 2022): a rule that gives an ordinary schedule a time.

The paper trains a size until the slope of its loss over compute, both logarithmic, has flattened to a
constant that depends on what grows, and not on the size: there a larger model makes more of the next FLOP.
Here that is read off the records of a run that was trained on, and gives the fraction of its budget at which
to grow. The event then stands in a schedule like any other, so costs, resuming and shared trunks know its
time beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import median

from nasgrow.training.records import read_metrics

SPAN = 2.0
"""A slope is that of the line through all points within this factor of compute."""
POINTS = 5
"""The fewest points that make a slope."""


def growth_point(curve: Sequence[tuple[float, float]], slope: float) -> float | None:
    """The compute at which a curve of (compute, loss) has flattened to ``slope``: d log loss / d log compute.

    Flat stretches before the steepest one, as a model's first steps are, do not count; where noise makes
    the slope cross several times, the middle one does. None, if the curve does not get that flat.

    Raises:
        ValueError: The slope is not negative, or the curve is too short to have one.
    """
    if not slope < 0:
        raise ValueError(f"slope must be below 0, as losses fall, not {slope!r}")
    points = sorted((log(compute), log(loss)) for compute, loss in curve if compute > 0 and loss > 0)
    found = []
    for first in range(len(points)):
        within = [point for point in points[first:] if point[0] <= points[first][0] + log(SPAN)]
        complete = points[-1][0] >= points[first][0] + log(SPAN)
        if complete and len(within) >= POINTS:
            found.append(_line(within))
    if not found:
        raise ValueError(
            f"a slope needs {POINTS} losses within a factor {SPAN:g} of compute, and there are "
            f"{len(points)} in all"
        )
    steepest = min(range(len(found)), key=lambda index: found[index][1])
    crossings = [
        place + (slope - value) / (after - value) * (further - place)
        for (place, value), (further, after) in pairwise(found[steepest:])
        if value < slope <= after
    ]
    return exp(median(crossings)) if crossings else None


def growth_fraction(folder: Path, slope: float, stage: int = 0) -> float | None:
    """The fraction of a run's budget at which a stage of it has flattened to ``slope``; None if it has not.

    The curve is that of the training loss over all FLOPs charged so far. Of the first stage that is the
    paper's; of a later one it takes the FLOPs before the event for what the grown model would have needed to
    come as far, where the paper has a measured constant.
    """
    curve: list[tuple[float, float]] = []
    budget, at = 0.0, 0
    for record in read_metrics(folder):
        at += record["kind"] == "event"
        if record["kind"] == "train" and at == stage and record["loss"] is not None:
            curve.append((record["charged"], record["loss"]))
            budget = record["charged"] / record["fraction"]
    if not curve:
        raise ValueError(f"{folder}: has no training records of stage {stage + 1}")
    point = growth_point(curve, slope)
    return None if point is None else point / budget


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The slope of the least-squares line, and where a parabola through the points has it."""
    mean = sum(x for x, _ in points) / len(points)
    square, cube = (sum((x - mean) ** power for x, _ in points) for power in (2, 3))
    slope = sum((x - mean) * y for x, y in points) / square
    return mean + cube / square / 2, slope
