"""The fit of a map: known laws are found again, bounds count as bounds, and intervals cover new cells."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from nasgrow.report.map.fit import Bound, Measured, Place, fitted, left_out

GRID = [Place(h, n, t) for (h, n), t in product([(16, 2), (32, 2), (64, 2), (32, 4), (32, 8)], (5, 10, 20))]


def law(place: Place) -> float:
    return 0.9 - 0.4 * math.log(place.tokens) + 0.5 * math.log(place.layers) + 0.1 * math.log(place.hidden)


def cells(seed: int, spread: float) -> tuple[Measured, ...]:
    noise = np.random.default_rng(seed).normal(0, spread, len(GRID)).tolist()
    return tuple(
        Measured(str(at), place, law(place) + off, "exact")
        for at, (place, off) in enumerate(zip(GRID, noise, strict=True))
    )


def bounded(known: tuple[Measured, ...], most: float) -> tuple[Measured, ...]:
    """The same cells, if budgets above a multiple had not been trained."""
    bound: Bound = "above"
    return tuple(one if one.log_times <= most else replace(one, log_times=most, bound=bound) for one in known)


def test_a_law_is_found_again_and_extrapolated() -> None:
    found = fitted(cells(0, 1e-3))
    assert found is not None
    assert found.predictors == pytest.approx(
        {"1": 0.9, "log tokens per parameter": -0.4, "log layers": 0.5, "log hidden size": 0.1}, abs=0.01
    )
    far = Place(128, 12, 5)
    assert found.predict(far).value == pytest.approx(1 - math.exp(-law(far)), abs=0.01)


def test_exact_cells_are_fitted_as_by_least_squares() -> None:
    known = cells(1, 0.2)
    found = fitted(known)
    assert found is not None
    x = np.array([[1, math.log(p.tokens), math.log(p.layers), math.log(p.hidden)] for p in GRID])
    y = np.array([one.log_times for one in known])
    expected, residual, *_ = np.linalg.lstsq(x, y, rcond=None)
    assert list(found.predictors.values()) == pytest.approx(expected.tolist(), abs=1e-6)
    new = np.array([1, math.log(50), math.log(4), math.log(32)])
    variance = residual[0] / (len(y) - 4) * (1 + new @ np.linalg.inv(x.T @ x) @ new)
    half = stats.t.ppf(0.975, len(y) - 4) * math.sqrt(variance)
    predicted = found.predict(Place(32, 4, 50))
    assert predicted.low is not None
    width = -math.log(1 - predicted.value) + math.log(1 - predicted.low)
    assert width == pytest.approx(half, rel=1e-6), "the interval of a prediction"


def test_bounds_are_not_taken_for_values() -> None:
    known = cells(2, 0.1)
    whole, cut = fitted(known), fitted(bounded(known, 0.9))
    assert whole is not None
    assert cut is not None
    assert 4 <= sum(one.bound == "above" for one in cut.cells) <= 10
    naive = fitted(tuple(replace(one, bound="exact") for one in cut.cells))
    assert naive is not None
    name = "log layers"
    assert abs(cut.predictors[name] - whole.predictors[name]) < 0.1
    assert abs(naive.predictors[name] - whole.predictors[name]) > 0.15
    deep = Place(32, 16, 5)
    assert cut.predict(deep).value == pytest.approx(whole.predict(deep).value, abs=0.05)


def test_intervals_cover_new_cells() -> None:
    """With 95% intervals, 2,000 new cells: at least 90% must lie within, also with bounds."""
    place = Place(64, 4, 10)
    hits = []
    for seed in range(200):
        found = fitted(bounded(cells(seed, 0.2), 1.3))
        assert found is not None
        predicted = found.predict(place)
        assert predicted.low is not None
        assert predicted.high is not None
        new = law(place) + np.random.default_rng(10_000 + seed).normal(0, 0.2, 10)
        values = 1 - np.exp(-new)
        hits += ((predicted.low <= values) & (values <= predicted.high)).tolist()
    assert 0.9 <= np.mean(hits) <= 0.99


def test_cells_are_predicted_from_the_others() -> None:
    known = cells(3, 0.05)
    off = (replace(known[0], log_times=known[0].log_times + 1), *known[1:])
    found = fitted(off)
    assert found is not None
    errors = {
        cell.name: abs(predicted.value - (1 - math.exp(-law(cell.place))))
        for cell, predicted in left_out(found)
    }
    assert len(errors) == len(known)
    assert errors["0"] < 0.05, "an outlier does not predict itself"


def test_too_few_cells_have_no_fit() -> None:
    known = cells(4, 0.1)
    assert fitted(known[:4]) is None
    assert fitted(()) is None
    assert fitted(bounded(known, -5)) is None, "bounds alone"
    one_shape = tuple(one for one in known if one.place.hidden == 16)
    assert (
        fitted((*one_shape, *(replace(one, log_times=one.log_times + 0.1) for one in one_shape))) is not None
    )
