"""The value of points: a Gaussian process over their profiles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NUGGET = 0.01
"""The variance of a final loss that no profile explains, as a share of that of all."""

NARROWEST, WIDEST = 0.01, 30.0
"""The range of weights: what a distance of one in a dimension means."""

FACTORS = 9.0, 3.0, 3.0
"""Weights are fitted one after the other, each multiplied or divided by these in turn."""


def weigh(apart: Floats, losses: Floats, noise: Floats) -> Floats:
    """The weight of each dimension, from its likelihood and a prior that is broad around one.

    Args:
        apart: The squared distances of what was observed, a matrix for each dimension.
        losses: What was observed, with mean 0 and variance 1.
        noise: The variance of each.
    """
    weights = np.ones(len(apart))
    used = [dim for dim in range(len(apart)) if apart[dim].any()]
    for factor in FACTORS:
        for dim in used:
            offered = [weights.copy() for _ in range(3)]
            for one, by in zip(offered, (1.0, factor, 1 / factor), strict=True):
                one[dim] = np.clip(one[dim] * by, NARROWEST, WIDEST)
            weights = max(offered, key=lambda one: _likelihood(one, apart, losses, noise))
    return weights


def predict(
    weights: Floats, apart: Floats, losses: Floats, noise: Floats, away: Floats
) -> tuple[Floats, Floats]:
    """The mean and the standard deviation of the final losses of points.

    Args:
        weights: The weight of each dimension.
        apart: The squared distances of what was observed, a matrix for each dimension.
        losses: What was observed, with mean 0 and variance 1.
        noise: The variance of each.
        away: The squared distances of the points, in rows, to what was observed.
    """
    lower = np.linalg.cholesky(_covariance(weights, apart, noise))
    across = np.exp(-0.5 * np.tensordot(weights, away, 1))
    mean = across @ np.linalg.solve(lower.T, np.linalg.solve(lower, losses))
    explained = np.square(np.linalg.solve(lower, across.T)).sum(axis=0)
    return mean, np.sqrt(np.maximum(1e-6, 1 - explained))


def _covariance(weights: Floats, apart: Floats, noise: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * np.tensordot(weights, apart, 1)) + np.diag(noise + NUGGET))


def _likelihood(weights: Floats, apart: Floats, losses: Floats, noise: Floats) -> float:
    """The logarithm of the posterior density of weights, but for a constant."""
    lower = np.linalg.cholesky(_covariance(weights, apart, noise))
    fit = np.square(np.linalg.solve(lower, losses)).sum() / 2 + np.log(np.diag(lower)).sum()
    return float(-fit - np.square(np.log(weights)).sum() / 8)
