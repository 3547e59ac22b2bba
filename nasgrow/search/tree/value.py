"""The value of points: a Gaussian process over their profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtrs  # type: ignore[import-untyped]

from nasgrow.search.tree.profile import Metric, Placed, Profiles

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


@dataclass(frozen=True)
class Belief:
    """What a process believes of points.

    Attributes:
        points: The points.
        half: Of each observation and each point the part of its covariance that is left over by the
            observations before, so that products of two columns are what observations explain.
        mean: The expected losses.
        explained: How much of their variance is explained.
    """

    points: Placed
    half: Floats
    mean: Floats
    explained: Floats


def deviation(explained: Floats) -> Floats:
    """The standard deviations of losses of whose variance so much is explained."""
    return np.asarray(np.sqrt(np.maximum(1e-6, 1 - explained)))


class Process:
    """A Gaussian process that has observed losses.

    Args:
        weights: The weight of each dimension.
        profiles: The points that were observed.
        losses: Their losses, with mean 0 and variance 1.
        noise: The variance of each.
    """

    def __init__(self, weights: Floats, profiles: Profiles, losses: Floats, noise: Floats) -> None:
        self._metric = Metric(weights, profiles)
        self._seen = self._metric.place(profiles)
        self._lower = np.linalg.cholesky(_covariance(self._metric.apart(self._seen, self._seen), noise))
        self._solved = _solve(self._lower, losses)

    def believe(self, profiles: Profiles) -> Belief:
        """What is believed of points."""
        points = self._metric.place(profiles)
        half = _solve(self._lower, self._kernel(self._seen, points))
        return Belief(points, half, self._solved @ half, np.square(half).sum(axis=0))

    def updated(
        self, beliefs: Sequence[Belief], more: Profiles, losses: Floats, noise: Floats
    ) -> tuple[Floats, Floats]:
        """What is believed once more has been observed: the expected losses, and the explained variances.

        Args:
            beliefs: What was believed before, of some points and of others.
            more: The points; the last of them may be without a loss yet. They are believed to come to what is
                expected, so that nothing changes but doubt: others look elsewhere.
            losses: The losses of the first.
            noise: The variance of each of these.
        """
        theirs, known = self.believe(more), len(losses)
        noise = np.concatenate([noise, np.zeros(len(theirs.mean) - known)])
        among = _covariance(self._metric.apart(theirs.points, theirs.points), noise)
        lower = np.linalg.cholesky(among - theirs.half.T @ theirs.half)
        solved = _solve(lower[:known, :known], losses - theirs.mean[:known])
        means, explained = [], []
        for belief in beliefs:
            across = self._kernel(theirs.points, belief.points) - theirs.half.T @ belief.half
            half = _solve(lower, across)
            means.append(belief.mean + solved @ half[:known])
            explained.append(belief.explained + np.square(half).sum(axis=0))
        return np.concatenate(means), np.concatenate(explained)

    def _kernel(self, ours: Placed, theirs: Placed) -> Floats:
        return np.asarray(np.exp(-0.5 * self._metric.apart(ours, theirs)))


def _covariance(exponent: Floats, noise: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * exponent) + np.diag(noise + NUGGET))


def _solve(lower: NDArray[np.floating[Any]], right: Floats) -> Floats:
    """The solution of a lower triangular system; SciPy's own function takes longer to find out what it is."""
    if not right.size:
        return right
    found, _ = dtrtrs(lower.T, right, lower=0, trans=1)  # transposed it is as Fortran wants it
    return np.asarray(found)


def _likelihood(weights: Floats, exponent: Floats, losses: Floats, noise: Floats) -> float:
    """The logarithm of the posterior density of weights, but for a constant."""
    lower = np.linalg.cholesky(_covariance(exponent, noise))
    half = _solve(lower, losses)
    fit = np.square(half).sum() / 2 + np.log(np.diag(lower)).sum()
    return float(-fit - np.square(np.log(weights)).sum() / 8)
