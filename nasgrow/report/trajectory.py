"""Validation loss curves over the budget: means over seeds, and compute saved between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trajectory:
    """The evaluations of one run, or their mean over the seeds of one candidate.

    All evaluations use the same windows of text. The last one of a finished run is after its last
    step. The final loss of a run is measured on more text and is not part of its curve.

    Attributes:
        aligned: The fraction of the budget at which each evaluation was due, equal for all runs of a study.
        fraction: The fraction of the budget that was really spent at each evaluation.
        loss: The validation loss at each evaluation.
        events: For each event, the fraction of the budget at which it happened and the validation
            loss just before it.
        band: The lowest and the highest loss over seeds at each evaluation; None for a single run.
    """

    aligned: Floats
    fraction: Floats
    loss: Floats
    events: tuple[tuple[float, float], ...]
    band: tuple[Floats, Floats] | None = None


@dataclass(frozen=True)
class Saving:
    """Compute saved at equal loss, read off two curves.

    Attributes:
        loss: The loss at which the curves are compared: the higher one of their last losses.
        ours: The fraction of the budget at which our curve first reached that loss.
        theirs: The fraction of the budget at which their curve first reached it.
    """

    loss: float
    ours: float
    theirs: float

    @property
    def share(self) -> float:
        """The fraction of their compute that our run saved; below 0 if it needed more."""
        return 1 - self.ours / self.theirs


def mean(trajectories: Sequence[Trajectory]) -> Trajectory | None:
    """Return the mean curve over seeds; None without a curve.

    It has the evaluations and events that all of the curves have.
    """
    if not trajectories:
        return None
    common = sorted(set.intersection(*(set(one.aligned.tolist()) for one in trajectories)))
    places = [np.searchsorted(one.aligned, common) for one in trajectories]
    losses = np.array([one.loss[at] for one, at in zip(trajectories, places, strict=True)])
    return Trajectory(
        np.array(common),
        np.mean([one.fraction[at] for one, at in zip(trajectories, places, strict=True)], axis=0),
        losses.mean(axis=0),
        tuple(
            (float(np.mean([at for at, _ in one])), float(np.mean([loss for _, loss in one])))
            for one in zip(*(trajectory.events for trajectory in trajectories), strict=False)
        ),
        (losses.min(axis=0), losses.max(axis=0)) if len(trajectories) > 1 else None,
    )


def reached(curve: Trajectory, loss: float) -> float | None:
    """Return the fraction of the budget at which a curve first reaches ``loss``; None if it never does."""
    return crossing(curve.fraction, curve.loss, loss)


def crossing(x: Floats, y: Floats, level: float) -> float | None:
    """Return the x at which the line through the points first falls to ``level``.

    It is the first x if that point is at ``level`` or below, and None if no point is.
    """
    below = np.flatnonzero(y <= level)
    if not len(below):
        return None
    index = int(below[0])
    if index == 0:
        return float(x[0])
    (x0, x1), (y0, y1) = x[index - 1 : index + 1], y[index - 1 : index + 1]
    return float(x0 + (x1 - x0) * (y0 - level) / (y0 - y1))


def saving(ours: Trajectory, theirs: Trajectory) -> Saving | None:
    """Return the compute saved at the higher of the two last evaluated losses.

    Both curves must have the same budget and the same windows of text. The run that reaches the
    loss first does so with a learning rate that has decayed less than the other's, so its lead is
    understated. Return None if a curve is empty, or has that loss before anything is spent.
    """
    if not len(ours.loss) or not len(theirs.loss):
        return None
    loss = max(float(ours.loss[-1]), float(theirs.loss[-1]))
    first, second = reached(ours, loss), reached(theirs, loss)
    return Saving(loss, first, second) if first and second else None
