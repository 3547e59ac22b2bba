"""Fit the compute saved over a map's sizes, and predict it for a model that is not on the map.

In each cell, the final shape from scratch needs some budget to reach the schedule's loss: the budget of
equal loss, as a multiple of the schedule's budget. The fit takes its natural logarithm as linear in the
logarithms of tokens per parameter, layers and hidden size. In some cells that budget is below the smallest
one trained, or above the largest. These cells enter the likelihood as bounds (Tobin 1958). In the parameters
of Olsen (1978) the likelihood has one maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from nasgrow.report import words
from nasgrow.report.map.results import CellResult, MapRecords
from nasgrow.report.statistics import CONFIDENCE, Estimate
from nasgrow.report.trajectory import Floats

NEWTON_STEPS = 100
"""The most steps to the maximum of the likelihood; ten are usual."""

SPARE_CELLS = 2
"""How many exact cells more than predictors a fit needs."""

Bound = Literal["exact", "above", "below"]


class FitError(Exception):
    """There is no fit, or none that predicts a place; the message says why, without a full stop."""


@dataclass(frozen=True)
class Place:
    """A place on or off the map: a final shape's hidden size and layers, and its tokens per parameter."""

    hidden: int
    layers: int
    tokens: float


_SIZES: Mapping[str, Callable[[Place], float]] = {
    "log tokens per parameter": lambda place: place.tokens,
    "log layers": lambda place: place.layers,
    "log hidden size": lambda place: place.hidden,
}
"""The sizes of a place whose logarithms are predictors."""


@dataclass(frozen=True)
class Measured:
    """The budget of equal loss in one cell.

    Attributes:
        name: The cell's name.
        place: Its sizes.
        log_times: The natural logarithm of that budget, or of its bound.
        bound: ``exact``; or ``above`` or ``below`` if the budget lies above or below ``log_times``.
    """

    name: str
    place: Place
    log_times: float
    bound: Bound


@dataclass(frozen=True)
class Fit:
    """A fit of the budget of equal loss, from which the compute saved follows.

    Attributes:
        cells: The cells that it was fitted to.
        predictors: What varies between the cells, with its coefficient; ``1`` is the constant.
        deviation: The standard deviation of the residuals, corrected for the predictors fitted.
        covariance: Of Olsen's parameters: each coefficient / s, then 1 / s, where s is the deviation without
            that correction.
    """

    cells: tuple[Measured, ...]
    predictors: Mapping[str, float]
    deviation: float
    covariance: Floats

    def predict(self, place: Place) -> Estimate:
        """Predict the log of the budget of equal loss at a place, with a 95% prediction interval.

        This is the budget that the final shape needs from scratch to reach the schedule's loss, as
        a multiple of the schedule's budget. The logarithm is natural. The interval is that of one
        new cell, so it includes the residual variance.

        Raises:
            FitError: The place differs from the cells in a size that is equal in all of them, so
                the effect of this size is unknown.
        """
        for name, size in _SIZES.items():
            here, there = size(place), size(self.cells[0].place)
            if name not in self.predictors and here != there:
                what = name.removeprefix("log ")
                raise FitError(f"{what} is {there:g} in every cell of the map: its effect is not known")
        x = np.array([_predictors(place)[name] for name in self.predictors])
        mean = float(x @ np.array(list(self.predictors.values())))
        gradient = np.append(x, -mean)
        spread = self.deviation**2 * (1 + gradient @ self.covariance @ gradient)
        free = _exact(self.cells) - len(x)
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, free)) * math.sqrt(spread)
        return Estimate(mean, mean - half, mean + half)

    def covers(self, place: Place) -> bool:
        """Return whether each size of a place lies between the smallest and largest of the cells."""
        return all(
            min(size(cell.place) for cell in self.cells)
            <= size(place)
            <= max(size(cell.place) for cell in self.cells)
            for size in _SIZES.values()
        )


def fit(found: MapRecords) -> Fit:
    """Fit the budgets of equal loss of a map's confirmed cells; see :func:`fitted`.

    Cells without such a budget are left out; see :func:`unfitted`.

    Raises:
        FitError: As for :func:`fitted`, or every final shape has a result at one budget only.
    """
    places = {
        cell.name: Place(cell.shape.hidden, len(cell.shape.layers), cell.tokens_per_parameter)
        for cell in found.map.cells
    }
    known = [(one, _log_times(one)) for one in found.confirmed]
    cells = tuple(Measured(one.name, places[one.name], *at) for one, at in known if at is not None)
    if not cells and any(one.final for one in found.confirmed):
        raise FitError("no final shape has two confirmed cells that were trained on the same text")
    return fitted(cells)


def unfitted(found: MapRecords) -> dict[str, list[str]]:
    """Return the names of the confirmed cells that a fit leaves out, by the reason."""
    reasons: dict[str, list[str]] = {}
    for one in found.confirmed:
        if _log_times(one) is None:
            reason = (
                "every schedule diverged"
                if one.diverged
                else "no other budget of the final shape is confirmed"
            )
            reasons.setdefault(reason, []).append(one.name)
    return reasons


def fitted(cells: tuple[Measured, ...]) -> Fit:
    """Fit the log of the budget of equal loss as a linear function of the logs of the sizes.

    This is a Tobit regression by maximum likelihood. A cell whose budget of equal loss lies outside
    the budgets trained enters as a bound. A size that is equal in all cells is no predictor.

    Raises:
        FitError: There are fewer exact cells than predictors (the constant is one) plus
            :data:`SPARE_CELLS`, the cells do not determine every coefficient, or the exact cells
            leave no residuals.
    """
    rows = [_predictors(cell.place) for cell in cells]
    names = [
        name for name in _predictors(Place(1, 1, 1)) if name == "1" or len({row[name] for row in rows}) > 1
    ]
    exact, needed = _exact(cells), len(names) + SPARE_CELLS
    if exact < needed:
        raise FitError(
            f"too few cells to fit the compute saved: it needs {needed} in which the final shape reaches the "
            f"schedule's loss within the budgets it was trained with, and has {exact}"
        )
    x = np.array([[row[name] for name in names] for row in rows])
    design = np.column_stack([x, -np.array([cell.log_times for cell in cells])])
    bounds = np.array([cell.bound for cell in cells])
    if together := _undetermined(x, names):
        raise FitError(f"{words.listed(together)} vary together on the map, so their effects are not known")
    found = _maximum(design, bounds)
    if found is None:
        one_sided = _undetermined(x[bounds == "exact"], names)
        raise FitError(
            f"only cells with a bound on one side show the effect of {words.listed(one_sided)}"
            if one_sided
            else "the likelihood has no maximum: the exact cells leave no residuals"
        )
    scaled, covariance = found
    likeliest = 1 / float(scaled[-1])
    coefficients = dict(zip(names, (scaled[:-1] * likeliest).tolist(), strict=True))
    return Fit(cells, coefficients, likeliest * math.sqrt(exact / (exact - len(names))), covariance)


def _exact(cells: tuple[Measured, ...]) -> int:
    return sum(cell.bound == "exact" for cell in cells)


def _undetermined(x: Floats, names: list[str]) -> list[str]:
    """Return, in words, the predictors whose effects these rows cannot tell apart.

    Each of them varies with others in the rows. The constant is never listed.
    """
    _, sizes, directions = np.linalg.svd(x)
    rank = int((sizes > 1e-9 * sizes[0]).sum())
    free = np.abs(directions[rank:]).max(axis=0, initial=0)
    return [
        name.removeprefix("log ")
        for name, part in zip(names, free, strict=True)
        if name != "1" and part > 1e-6
    ]


def left_out(found: Fit) -> list[tuple[Measured, Estimate]]:
    """Predict each cell by a fit to the cells of all other final shapes.

    Those of the same final shape are left out too, because they share its baseline curve. The
    result lacks a cell if the others do not allow a fit.
    """

    def shape(cell: Measured) -> tuple[int, int]:
        return cell.place.hidden, cell.place.layers

    predicted = []
    for cell in found.cells:
        with suppress(FitError):
            others = fitted(tuple(one for one in found.cells if shape(one) != shape(cell)))
            predicted.append((cell, others.predict(cell.place)))
    return predicted


def interval(log_times: Estimate) -> tuple[float, float, float]:
    """Return the value, lower end and upper end of a prediction, which has both ends."""
    assert log_times.low is not None
    assert log_times.high is not None
    return log_times.value, log_times.low, log_times.high


def agrees(cell: Measured, log_times: Estimate) -> bool:
    """Return whether a cell agrees with the interval of its prediction.

    An exact value must lie within the interval. A bound must not exclude the whole interval.
    """
    _, low, high = interval(log_times)
    if cell.bound == "above":
        return cell.log_times <= high
    return low <= cell.log_times and (cell.bound == "below" or cell.log_times <= high)


def _log_times(one: CellResult) -> tuple[float, Bound] | None:
    equal = one.final.saved if one.final else None
    if equal is None:
        return None
    if equal.times is not None:
        return math.log(equal.times), "exact"
    return (
        (math.log(equal.rungs[-1].times), "above")
        if equal.above
        else (math.log(equal.rungs[0].times), "below")
    )


def _predictors(place: Place) -> dict[str, float]:
    return {"1": 1.0, **{name: math.log(size(place)) for name, size in _SIZES.items()}}


def _maximum(design: Floats, bounds: np.ndarray) -> tuple[Floats, Floats] | None:
    """Maximise the likelihood by Newton's method; None if it has no maximum.

    That is so if predictors are collinear, if only cells with a bound on one side show the effect
    of one of them, or if the exact cells leave no residuals.

    Args:
        design: A row for each cell: its predictors, and its value with the opposite sign. Times the
            parameters (coefficients and 1, all divided by the deviation), this is the cell's
            prediction minus its value, divided by the deviation.
        bounds: The :data:`Bound` of each cell.

    Returns:
        The parameters and their covariance.
    """
    exact = design[bounds == "exact"]
    signs = np.where(bounds == "above", 1.0, -1.0)[bounds != "exact"]
    bounded = signs[:, None] * design[bounds != "exact"]
    last = np.zeros(design.shape[1])
    last[-1] = 1.0

    def likelihood(p: Floats) -> float:
        if p[-1] <= 0:
            return -math.inf
        residuals = exact @ p
        return float(
            len(exact) * math.log(p[-1]) - residuals @ residuals / 2 + stats.norm.logcdf(bounded @ p).sum()
        )

    coefficients, *_ = np.linalg.lstsq(exact[:, :-1], -exact[:, -1], rcond=None)
    spread = float(np.std(exact[:, :-1] @ coefficients + exact[:, -1])) or 1e-3
    p = np.append(coefficients, 1.0) / max(spread, 1e-3)
    for _ in range(NEWTON_STEPS):
        z = bounded @ p
        mills = np.exp(stats.norm.logpdf(z) - stats.norm.logcdf(z))
        gradient = -exact.T @ (exact @ p) + len(exact) / p[-1] * last + bounded.T @ mills
        curvature = exact.T @ exact + len(exact) / p[-1] ** 2 * np.outer(last, last)
        curvature = curvature + bounded.T @ ((mills * (z + mills))[:, None] * bounded)
        if np.linalg.cond(curvature) > 1e12:
            return None
        step = np.linalg.solve(curvature, gradient)
        if gradient @ step < 1e-12:
            covariance: Floats = np.linalg.inv(curvature)
            return p, covariance
        size = 1.0
        while likelihood(p + size * step) < likelihood(p):
            size /= 2
        p = p + size * step
    return None
