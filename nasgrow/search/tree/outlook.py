"""The outlook of a branch: its final loss, from its loss at a rung and the size it has there.

At equal compute a smaller model is often ahead early on and behind later, so that the lowest loss would
always say "wait". How much that is, and how far a loss at a rung can be trusted, is learned from the runs
that have ended: their final loss is regressed on the loss at the rung and on the logarithm of the FLOPs of a
step there (Bayesian, so that a few runs do).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BEFORE = np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.5, 0.1])
"""What is believed of level, loss and size before a run has ended: the mean and its standard deviation."""

DOUBT = 4.0
"""An outlook's variance is taken for so many times what the regression says.

Branches that begin alike are wrong together, and the runs that have ended are a selection. Chosen by replay.
"""


class Outlook:
    """What runs that ended tell about branches at one rung.

    Args:
        losses: Their losses at the rung.
        sizes: The logarithms of the FLOPs of their steps there.
        ends: Their final losses.
    """

    def __init__(self, losses: Floats, sizes: Floats, ends: Floats) -> None:
        seen = np.column_stack([losses, sizes])
        self._middle, self._level = seen.mean(axis=0), float(np.mean(ends))
        known = np.column_stack([np.ones(len(ends)), seen - self._middle])
        rest = ends - self._level
        expected, allowed = BEFORE
        spread = max(0.01, float(np.std(ends))) / 2
        error = spread
        for _ in range(3):
            precision = known.T @ known / error**2 + np.diag(allowed**-2.0)
            self._covariance = np.linalg.inv(precision)
            self._weights = self._covariance @ (known.T @ rest / error**2 + expected / allowed**2)
            squares = np.square(rest - known @ self._weights).sum()
            error = float(np.sqrt((squares + 2 * spread**2) / (len(ends) + 2)))
        self._error = error

    def final(self, losses: Floats, sizes: Floats) -> tuple[Floats, Floats]:
        """The final losses of branches, and their variances.

        Args:
            losses: Their losses at the rung.
            sizes: The logarithms of the FLOPs of their steps there.
        """
        seen = np.column_stack([np.ones(len(losses)), np.column_stack([losses, sizes]) - self._middle])
        spread = np.einsum("bi,ij,bj->b", seen, self._covariance, seen)
        return self._level + seen @ self._weights, DOUBT * (self._error**2 + spread)
