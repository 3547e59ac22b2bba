"""The validation loss of a run over its budget, and what two of them say about each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trajectory:
    """Evaluations of one run, or their mean over the seeds of one candidate.

    They are all made on the same windows of text, the last one after the last step. The final loss of a run
    is measured on more text and is no part of its curve.

    Attributes:
        aligned: The fractions of the budget at which evaluations were due: the same for all runs of a study.
        fraction: The fractions of the budget that were spent.
        loss: The validation loss there.
        events: Fraction and loss just before each event.
        band: The lowest and the highest loss over seeds at each evaluation; None of a single run.
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
        loss: The loss compared at: the last evaluation of the run that ended higher.
        ours: The fraction of the budget at which ours first was that low.
        theirs: The same for theirs.
    """

    loss: float
    ours: float
    theirs: float

    @property
    def share(self) -> float:
        """The part of their compute that we did without; below 0 if we needed more."""
        return 1 - self.ours / self.theirs


def mean(trajectories: Sequence[Trajectory]) -> Trajectory | None:
    """The mean over seeds, where all of them were evaluated; None without any."""
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
    """The fraction of the budget at which a curve is first as low as ``loss``; None if it never is."""
    return crossing(curve.fraction, curve.loss, loss)


def crossing(x: Floats, y: Floats, level: float) -> float | None:
    """Where a line through points is first as low as ``level``; None if it never is."""
    below = np.flatnonzero(y <= level)
    if not len(below):
        return None
    index = int(below[0])
    if index == 0:
        return float(x[0])
    (x0, x1), (y0, y1) = x[index - 1 : index + 1], y[index - 1 : index + 1]
    return float(x0 + (x1 - x0) * (y0 - level) / (y0 - y1))


def saving(ours: Trajectory, theirs: Trajectory) -> Saving | None:
    """Compute saved at the higher of the two losses at the last evaluation; None where curves are lacking.

    Both curves are compared on the same windows of text. Whoever gets there first does so with a higher
    learning rate than the other, which is further in its decay: its lead is understated.
    """
    if not len(ours.loss) or not len(theirs.loss):
        return None
    loss = max(float(ours.loss[-1]), float(theirs.loss[-1]))
    first, second = reached(ours, loss), reached(theirs, loss)
    return Saving(loss, first, second) if first and second else None
