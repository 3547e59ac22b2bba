"""Fit the compute saved over a map's sizes, and predict it for a model that is not on the map.

The logarithm of the budget at which the final shape from scratch has the schedule's loss, as a multiple of
the schedule's budget, is linear in the logarithms of tokens per parameter, layers and hidden size. Cells in
which that budget lies outside those trained enter as bounds (Tobin 1958). The parameters are those of Olsen
(1978), in which the likelihood has one maximum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from nasgrow.report.map.read import CellResult, MapRecords
from nasgrow.report.statistics import CONFIDENCE, Estimate
from nasgrow.report.trajectory import Floats

NEWTON_STEPS = 100
"""The most steps to the maximum of the likelihood; ten are usual."""

SPARE_CELLS = 2
"""How many cells more than parameters a fit needs."""

Bound = Literal["exact", "above", "below"]


@dataclass(frozen=True)
class Place:
    """A place on or off the map: a final shape's hidden size and layers, and its tokens per parameter."""

    hidden: int
    layers: int
    tokens: float


@dataclass(frozen=True)
class Measured:
    """The budget of equal loss in one cell: its logarithm, or a bound above or below which that lies."""

    name: str
    place: Place
    log_times: float
    bound: Bound


@dataclass(frozen=True)
class Fit:
    """A fit of the compute saved.

    Attributes:
        cells: The cells that it was fitted to.
        predictors: What varies between the cells, with its coefficient; ``1`` is the constant.
        deviation: The standard deviation of the residuals.
        covariance: That of the coefficients divided by the deviation, and of 1 over the deviation.
    """

    cells: tuple[Measured, ...]
    predictors: Mapping[str, float]
    deviation: float
    covariance: Floats

    def predict(self, place: Place) -> Estimate:
        """Return the share of compute saved at a place, with the 95% interval of one new cell."""
        x = np.array([_predictors(place)[name] for name in self.predictors])
        mean = float(x @ np.array(list(self.predictors.values())))
        gradient = np.append(x, -mean)
        free = len(self.cells) - len(x)
        variance = self.deviation**2 * len(self.cells) / free
        spread = variance * (1 + gradient @ self.covariance @ gradient)
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, free)) * math.sqrt(spread)
        return Estimate(_share(mean), _share(mean - half), _share(mean + half))


def fit(found: MapRecords) -> Fit | None:
    """Fit the savings of the confirmed cells; None with too few of them."""
    places = {
        cell.name: Place(cell.shape.hidden, len(cell.shape.layers), cell.tokens_per_parameter)
        for cell in found.map.cells
    }
    known = ((one, _log_times(one)) for one in found.confirmed)
    return fitted(tuple(Measured(one.name, places[one.name], *at) for one, at in known if at is not None))


def fitted(cells: tuple[Measured, ...]) -> Fit | None:
    """Fit the budgets of equal loss of some cells; None with too few of them, or too few exact ones."""
    if not cells:
        return None
    rows = [_predictors(cell.place) for cell in cells]
    names = [name for name in rows[0] if name == "1" or len({row[name] for row in rows}) > 1]
    exact = sum(cell.bound == "exact" for cell in cells)
    if exact <= len(names) or len(cells) < len(names) + SPARE_CELLS:
        return None
    x = np.array([[row[name] for name in names] for row in rows])
    design = np.column_stack([x, -np.array([cell.log_times for cell in cells])])
    found = _maximum(design, np.array([cell.bound for cell in cells]))
    if found is None:
        return None
    scaled, covariance = found
    deviation = 1 / float(scaled[-1])
    coefficients = dict(zip(names, (scaled[:-1] * deviation).tolist(), strict=True))
    return Fit(cells, coefficients, deviation, covariance)


def left_out(found: Fit) -> list[tuple[Measured, Estimate]]:
    """Predict each cell from all the others; cells without which there is no fit are left out."""
    predicted = []
    for cell in found.cells:
        others = fitted(tuple(one for one in found.cells if one is not cell))
        if others is not None and others.predictors.keys() == found.predictors.keys():
            predicted.append((cell, others.predict(cell.place)))
    return predicted


def saved(cell: Measured) -> float:
    """Return the share of compute saved in a cell, or the bound of that share."""
    return _share(cell.log_times)


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
    return {
        "1": 1.0,
        "log tokens per parameter": math.log(place.tokens),
        "log layers": math.log(place.layers),
        "log hidden size": math.log(place.hidden),
    }


def _share(log_times: float) -> float:
    return 1 - math.exp(-log_times)


def _maximum(design: Floats, bounds: np.ndarray) -> tuple[Floats, Floats] | None:
    """Maximise the likelihood by Newton's method; None if it has no maximum.

    That is so if predictors are collinear, or if one of them is known from bounds on one side only.

    A row of ``design`` is the predictors and the negative value of a cell. Its product with the parameters
    (coefficients and 1, all divided by the deviation) is the cell's standardised residual.

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
