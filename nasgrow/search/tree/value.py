"""The value of points: a Gaussian process over their profiles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular  # type: ignore[import-untyped]

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
    exponent = np.tensordot(weights, apart, 1)
    most = _likelihood(weights, exponent, losses, noise)
    used = [dim for dim in range(len(apart)) if apart[dim].any()]
    for factor in FACTORS:
        for dim in used:
            was = weights[dim]
            for by in (factor, 1 / factor):
                offered = weights.copy()
                offered[dim] = np.clip(was * by, NARROWEST, WIDEST)
                moved = exponent + (offered[dim] - weights[dim]) * apart[dim]
                likelihood = _likelihood(offered, moved, losses, noise)
                if likelihood > most:
                    weights, exponent, most = offered, moved, likelihood
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
    lower = np.linalg.cholesky(_covariance(np.tensordot(weights, apart, 1), noise))
    across = np.exp(-0.5 * np.tensordot(weights, away, 1))
    whitened = solve_triangular(lower, np.column_stack([losses, across.T]), lower=True, check_finite=False)
    mean = whitened[:, 1:].T @ whitened[:, 0]
    explained = np.square(whitened[:, 1:]).sum(axis=0)
    return mean, np.sqrt(np.maximum(1e-6, 1 - explained))


def _covariance(exponent: Floats, noise: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * exponent) + np.diag(noise + NUGGET))


def _likelihood(weights: Floats, exponent: Floats, losses: Floats, noise: Floats) -> float:
    """The logarithm of the posterior density of weights, but for a constant."""
    lower = np.linalg.cholesky(_covariance(exponent, noise))
    fit = (
        np.square(solve_triangular(lower, losses, lower=True, check_finite=False)).sum() / 2
        + np.log(np.diag(lower)).sum()
    )
    return float(-fit - np.square(np.log(weights)).sum() / 8)
