"""The surrogate model of final losses: a Gaussian process over features, and a learning-curve regression.

Names follow BoTorch: ``X`` features, ``Y`` observations, ``X_pending`` points whose loss is not known yet.
"""

from __future__ import annotations

from math import log, pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular  # type: ignore[import-untyped]
from scipy.linalg.lapack import dpotrf, dtrtrs  # type: ignore[import-untyped]
from scipy.spatial.distance import cdist  # type: ignore[import-untyped]
from scipy.special import erfcx, ndtr  # type: ignore[import-untyped]

from nasgrow.schedulers.tree.features import RUNGS, Rows, TrialTable

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NUGGET = 0.01
"""The share of the variance of final losses that no feature explains, such as the effect of the seed."""

MIN_LENGTHSCALE, MAX_LENGTHSCALE = 0.18, 10.0
"""The bounds of lengthscales. At the upper bound a group of features makes hardly any difference."""

LENGTHSCALE_FACTORS = 3.0, sqrt(3.0), sqrt(3.0)
"""The factor of each round of the coordinate search.

A round tries every lengthscale multiplied and divided by its factor.
"""

DOUBT = 4.0
"""The factor by which the variance that the regression predicts is multiplied. Replays chose it.

The regression is overconfident: the errors of trials that share a prefix are correlated, and the finished
trials are a selection of the best.
"""

PRIOR_MEAN, PRIOR_STD = np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.5, 0.1])
"""The regression's prior of the weights of intercept, loss at the rung, and log FLOPs.

A weight of 1 for the loss means that a lead at the rung stays a lead.
"""


OBSERVED = 128
"""How many trials the process observes besides running ones.

Half of them are the best trials, and half are the latest of the others.
"""


def fit_lengthscales(X: Floats, Y: Floats, noise: Floats, groups: Integers) -> Floats:
    """Return the lengthscale of each group of columns.

    A coordinate search finds a large posterior density. The prior of the logarithms of lengthscales
    is standard normal.

    Args:
        X: The features of the observations.
        Y: The observations, with mean 0 and variance 1.
        noise: The variance of each observation, without the nugget.
        groups: The group of each column.
    """
    columns = [X[:, groups == group] for group in range(groups[-1] + 1)]
    squared = np.array([cdist(one, one, "sqeuclidean") for one in columns])
    log_scales, exponent, nuggets = np.zeros(len(squared)), squared.sum(axis=0), np.diag(noise + NUGGET)

    def log_density(log_scales: Floats, exponent: Floats) -> float:
        # LAPACK directly, because this takes most of a decision's time. A symmetric matrix is its transpose.
        L, _ = dpotrf((np.exp(-0.5 * exponent) + nuggets).T, lower=True)
        half, _ = dtrtrs(L, Y, lower=True)
        return float(-half @ half / 2 - np.log(L.diagonal()).sum() - log_scales @ log_scales / 2)

    largest = log_density(log_scales, exponent)
    for factor in LENGTHSCALE_FACTORS:
        for group in np.flatnonzero(squared.any(axis=(1, 2))):
            before = log_scales[group]
            for step in (-log(factor), log(factor)):
                moved = log_scales.copy()
                moved[group] = np.clip(before + step, log(MIN_LENGTHSCALE), log(MAX_LENGTHSCALE))
                change = np.exp(-2 * moved[group]) - np.exp(-2 * log_scales[group])
                density = log_density(moved, exponent + change * squared[group])
                if density > largest:
                    log_scales, exponent, largest = moved, exponent + change * squared[group], density
    return np.asarray(np.exp(log_scales))


class GaussianProcess:
    """A Gaussian process with mean 0, variance 1 and an RBF kernel with a lengthscale for each column.

    Args:
        X: The features of the observations.
        Y: The observations.
        noise: The variance of each observation, without the nugget.
        lengthscales: The lengthscale of each column.
    """

    def __init__(self, X: Floats, Y: Floats, noise: Floats, lengthscales: Floats) -> None:
        self._X, self._Y, self._noise, self._lengthscales = X, Y, noise, lengthscales
        self._L = np.linalg.cholesky(self._kernel(X) + np.diag(noise + NUGGET))
        self._half = solve_triangular(self._L, Y, lower=True, check_finite=False)

    def posterior(self, X: Floats) -> tuple[Floats, Floats]:
        """Return the posterior mean and standard deviation at each point, without noise."""
        half = solve_triangular(self._L, self._kernel(X), lower=True, check_finite=False, overwrite_b=True)
        explained = np.einsum("ij,ij->j", half, half)
        return self._half @ half, np.sqrt(np.maximum(1e-6, 1 - explained))

    def with_pending(self, X_pending: Floats) -> GaussianProcess:
        """Return the process conditioned on its posterior mean at pending points ("kriging believer").

        The mean does not change. The variance near pending points falls, so that the next choice looks
        elsewhere.
        """
        if not len(X_pending):
            return self
        Y = np.append(self._Y, self.posterior(X_pending)[0])
        noise = np.append(self._noise, np.zeros(len(X_pending)))
        return GaussianProcess(np.concatenate([self._X, X_pending]), Y, noise, self._lengthscales)

    def _kernel(self, X: Floats) -> Floats:
        """Return the covariance of each observation and each point.

        Squared distances are computed by matrix products, a fraction of the time of differences. The features
        are centred, so that the rounding error is far below the nugget.
        """
        centre = self._X.mean(axis=0)
        ours, theirs = (self._X - centre) / self._lengthscales, (X - centre) / self._lengthscales
        kernel = ours @ theirs.T
        kernel -= 0.5 * np.square(ours).sum(axis=1)[:, None] + 0.5 * np.square(theirs).sum(axis=1)
        np.minimum(kernel, 0.0, out=kernel)
        return np.asarray(np.exp(kernel, out=kernel))


class CurveRegression:
    """Predicts final losses from the loss at a rung and the FLOPs of a forward pass there.

    At equal compute a small model is often ahead early and behind later. The regression learns from finished
    trials by how much, and how well a loss at the rung predicts the final loss. It is Bayesian, so that a few
    trials are enough.

    Args:
        losses: The losses of finished trials at the rung.
        log_flops: The logarithms of the FLOPs of their forward passes at the rung.
        finals: Their final losses.
    """

    def __init__(self, losses: Floats, log_flops: Floats, finals: Floats) -> None:
        self._centre = np.array([losses.mean(), log_flops.mean()])
        self._level = float(finals.mean())
        A = self._design(losses, log_flops)
        y = finals - self._level
        prior_error = max(0.01, float(finals.std())) / 2
        self._error = prior_error
        for _ in range(3):  # alternate: fit the weights given the error, then the error given the weights
            precision = A.T @ A / self._error**2 + np.diag(PRIOR_STD**-2.0)
            self._covariance = np.linalg.inv(precision)
            self._weights = self._covariance @ (A.T @ y / self._error**2 + PRIOR_MEAN / PRIOR_STD**2)
            squares = np.square(y - A @ self._weights).sum()
            self._error = float(np.sqrt((squares + 2 * prior_error**2) / (len(y) + 2)))

    def predict(self, losses: Floats, log_flops: Floats) -> tuple[Floats, Floats]:
        """Return the mean and variance of the final losses of trials, at the same rung.

        The variance includes the residual noise, and is multiplied by :data:`DOUBT`.

        Args:
            losses: The losses of the trials at the rung.
            log_flops: The logarithms of the FLOPs of their forward passes at the rung.
        """
        A = self._design(losses, log_flops)
        spread = np.einsum("ti,ij,tj->t", A, self._covariance, A)
        return self._level + A @ self._weights, DOUBT * (self._error**2 + spread)

    def _design(self, losses: Floats, log_flops: Floats) -> Floats:
        seen = np.column_stack([losses, log_flops]) - self._centre
        return np.column_stack([np.ones(len(losses)), seen])


class LossModel:
    """Predicts the final losses of points from the final losses of trials and from losses at rungs.

    Args:
        trials: The trials; at least two have finished.
        groups: The group of each feature column.

    Attributes:
        best: The lowest final loss.
        expected: The final loss of each trial, known or predicted by the regression; NaN if
            neither. A diverged trial has the highest known one.
    """

    def __init__(self, trials: TrialTable, groups: Integers) -> None:
        self._trials = trials
        finals = trials.loss[~np.isnan(trials.loss)]
        self.best = float(finals.min())
        self._level, self._scale = float(finals.mean()), max(1e-3, float(finals.std()))
        self._regressions = [self._regression(rung) for rung in range(len(RUNGS))]

        # A diverged trial counts as the worst. An unfinished one gets the prediction from its latest rung.
        self.expected = np.where(trials.status == "diverged", finals.max(), trials.loss)
        variance = np.zeros(len(self.expected))
        self._predict(np.isnan(self.expected), trials.rows, trials.rung_losses, self.expected, variance)

        # The process observes running trials, but the lengthscales do not depend on them: otherwise a trial
        # would be chosen with other lengthscales than it is compared with at its next rung.
        running = trials.status == "running"
        others = _best_and_latest(np.where(running, np.nan, self.expected))
        observed = np.append(others, np.flatnonzero(running & ~np.isnan(self.expected)))
        X, count = trials.rows["X"][observed], len(others)
        Y = (self.expected[observed] - self._level) / self._scale
        noise = variance[observed] / self._scale**2
        lengthscales = fit_lengthscales(X[:count], Y[:count], noise[:count], groups)
        self._process = GaussianProcess(X, Y, noise, lengthscales[groups])

    def condition_on_pending(self, pending: NDArray[np.bool_]) -> None:
        """Condition the process on what it predicts for pending trials.

        Args:
            pending: Whether each trial is running and has no informative loss yet.
        """
        self._process = self._process.with_pending(self._trials.rows["X"][pending])

    def posterior(self, rows: Rows) -> tuple[Floats, Floats]:
        """Return the mean and standard deviation of the final losses of points, without noise."""
        mean, std = self._process.posterior(rows["X"])
        return self._level + self._scale * mean, self._scale * std

    def posterior_of_new(self, rows: Rows) -> tuple[Floats, Floats]:
        """Return the same as :meth:`posterior` for points that have no trial.

        Where a point shares a prefix with a trial, the prediction from the trial's loss at a rung is combined
        with the process, weighted by precision.
        """
        mean, std = self.posterior(rows)
        final, variance = mean.copy(), np.full(len(mean), np.inf)
        everywhere = np.ones(len(mean), np.bool_)
        self._predict(everywhere, rows, self._trials.losses_on_the_way(rows), final, variance)
        precision = std**-2.0 + 1 / variance
        return (mean * std**-2.0 + final / variance) / precision, precision**-0.5

    def _regression(self, rung: int) -> CurveRegression | None:
        """Return the regression at a rung; None if fewer than two finished trials can inform it.

        A finished trial informs it if its loss at the rung had recovered from the last event.
        """
        trials = self._trials
        losses, told = trials.rung_losses[:, rung], trials.rows["recovered"][:, rung]
        known = told & ~np.isnan(losses) & ~np.isnan(trials.loss)
        if known.sum() < 2:
            return None
        return CurveRegression(losses[known], trials.rows["log_flops"][known, rung], trials.loss[known])

    def _predict(
        self, which: NDArray[np.bool_], rows: Rows, losses: Floats, mean: Floats, variance: Floats
    ) -> None:
        """Predict final losses, in place, from the latest rung with a recovered loss.

        A rung without a regression does not count. Points without a rung keep their values.

        Args:
            which: The points to predict.
            rows: All points.
            losses: Their losses at each rung.
            mean: Receives the predicted final losses.
            variance: Receives their variances.
        """
        left = which.copy()
        for rung, regression in reversed(list(enumerate(self._regressions))):
            here = left & rows["recovered"][:, rung] & ~np.isnan(losses[:, rung])
            if regression is not None and here.any():
                mean[here], variance[here] = regression.predict(
                    losses[here, rung], rows["log_flops"][here, rung]
                )
                left &= ~here


def _best_and_latest(losses: Floats) -> Integers:
    """Return the indices of the trials to learn from: the best ones, and the latest of the others.

    They are at most :data:`OBSERVED`, the best ones first. A trial whose loss is NaN is left out.

    Args:
        losses: The loss of each trial, in the order of their numbers.
    """
    known = np.flatnonzero(~np.isnan(losses))
    ranked = known[np.argsort(losses[known], kind="stable")]
    best, rest = ranked[: OBSERVED // 2], ranked[OBSERVED // 2 :]
    return np.append(best, np.sort(rest)[-OBSERVED // 2 :])


def log_ei(mean: Floats, std: Floats, best: float) -> Floats:
    """Return the logarithm of the expected improvement of normal variables below the best value.

    It is log(std) + log h(z) with h(z) = phi(z) + z Phi(z) and z = (best - mean) / std. Where both terms of h
    nearly cancel, h is computed by the scaled complementary error function (Ament et al. 2023). Far in the
    tail, where that cancels too, it is computed by its asymptotic series.
    """
    z = (best - mean) / std
    near, tail, far = np.maximum(z, -1.0), np.clip(z, -100.0, -1.0), np.minimum(z, -100.0)
    log_phi, power = -0.5 * np.square(np.minimum(z, -1.0)) - 0.5 * log(2 * pi), far**-2.0
    log_h = np.where(
        z > -1.0,
        np.log(np.exp(-0.5 * np.square(near)) / sqrt(2 * pi) + near * ndtr(near)),
        log_phi
        + np.where(
            z > -100.0,
            np.log1p(sqrt(pi / 2) * tail * erfcx(-tail / sqrt(2))),
            np.log(power) + np.log1p(power * (-3 + power * (15 - 105 * power))),
        ),
    )
    return np.asarray(np.log(std) + log_h)
