"""The fit of a map: known laws are found again, bounds count as bounds, and intervals cover new cells."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from nasgrow.report.map.fit import Bound, FitError, Measured, Place, agrees, fitted, interval, left_out

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
    assert found.predictors == pytest.approx(
        {"1": 0.9, "log tokens per parameter": -0.4, "log layers": 0.5, "log hidden size": 0.1}, abs=0.01
    )
    far = Place(128, 12, 5)
    assert found.predict(far).value == pytest.approx(law(far), abs=0.01)


def test_exact_cells_are_fitted_as_by_least_squares() -> None:
    known = cells(1, 0.2)
    found = fitted(known)
    x = np.array([[1, math.log(p.tokens), math.log(p.layers), math.log(p.hidden)] for p in GRID])
    y = np.array([one.log_times for one in known])
    expected, residual, *_ = np.linalg.lstsq(x, y, rcond=None)
    assert list(found.predictors.values()) == pytest.approx(expected.tolist(), abs=1e-6)
    new = np.array([1, math.log(50), math.log(4), math.log(32)])
    variance = residual[0] / (len(y) - 4) * (1 + new @ np.linalg.inv(x.T @ x) @ new)
    half = stats.t.ppf(0.975, len(y) - 4) * math.sqrt(variance)
    value, low, high = interval(found.predict(Place(32, 4, 50)))
    assert [value - low, high - value] == pytest.approx([half, half], rel=1e-6)
    assert found.deviation == pytest.approx(math.sqrt(residual[0] / (len(y) - 4)), rel=1e-6)


def test_bounds_are_not_taken_for_values() -> None:
    known = cells(2, 0.1)
    whole, cut = fitted(known), fitted(bounded(known, 0.9))
    assert 4 <= sum(one.bound == "above" for one in cut.cells) <= 10
    naive = fitted(tuple(replace(one, bound="exact") for one in cut.cells))
    name = "log layers"
    assert abs(cut.predictors[name] - whole.predictors[name]) < 0.1
    assert abs(naive.predictors[name] - whole.predictors[name]) > 0.15
    deep = Place(32, 16, 5)
    assert cut.predict(deep).value == pytest.approx(whole.predict(deep).value, abs=0.2)


def test_bounds_below_mirror_bounds_above() -> None:
    known = bounded(cells(2, 0.1), 0.9)
    mirrored = tuple(
        replace(one, log_times=-one.log_times, bound="below" if one.bound == "above" else one.bound)
        for one in known
    )
    found, other = fitted(known), fitted(mirrored)
    assert other.predictors == pytest.approx({name: -value for name, value in found.predictors.items()})
    assert other.deviation == pytest.approx(found.deviation)
    value, low, high = interval(found.predict(Place(64, 4, 10)))
    assert interval(other.predict(Place(64, 4, 10))) == pytest.approx((-value, -high, -low))
    excluded = replace(known[0], log_times=high + 1, bound="above")
    assert not agrees(excluded, found.predict(Place(64, 4, 10)))
    assert agrees(replace(excluded, log_times=low), found.predict(Place(64, 4, 10)))
    assert agrees(replace(excluded, log_times=high, bound="below"), found.predict(Place(64, 4, 10)))
    assert not agrees(replace(excluded, log_times=low - 1, bound="below"), found.predict(Place(64, 4, 10)))


def test_intervals_cover_new_cells_though_half_of_the_cells_are_bounds() -> None:
    hits, bounds = [], 0
    places = (Place(64, 4, 10), Place(16, 2, 50), Place(32, 8, 5))
    for seed in range(200):
        try:
            found = fitted(bounded(cells(seed, 0.2), 0.85))
        except FitError:
            continue  # fewer than six cells are exact
        bounds += sum(one.bound != "exact" for one in found.cells)
        for place in places:
            _, low, high = interval(found.predict(place))
            new = law(place) + np.random.default_rng(10_000 + seed).normal(0, 0.2, 10)
            hits += ((low <= new) & (new <= high)).tolist()
    count = len(hits) // 30
    assert count > 150
    assert 0.45 <= bounds / (count * len(GRID)) <= 0.55
    assert 0.93 <= np.mean(hits) <= 0.99


def test_cells_are_predicted_from_the_others() -> None:
    known = cells(3, 0.05)
    off = (replace(known[0], log_times=known[0].log_times + 1), *known[1:])
    found = fitted(off)
    errors = {cell.name: abs(predicted.value - law(cell.place)) for cell, predicted in left_out(found)}
    assert len(errors) == len(known)
    assert errors["0"] < 0.2, "an outlier does not predict itself"


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ((), "it needs 3 in which .* within the budgets .*, and has 0"),
        (cells(4, 0.1)[:4], "too few cells to fit"),
        (bounded(cells(4, 0.1), -5), "it needs 6 in which .*, and has 0"),
        (
            tuple(replace(one, place=replace(one.place, layers=one.place.hidden)) for one in cells(4, 0.1)),
            "layers and hidden size vary together",
        ),
        (
            tuple(
                replace(one, bound="above") if one.place.hidden != 32 or one.place.layers != 2 else one
                for one in [*cells(4, 0.1), *cells(5, 0.1)]
            ),
            "only cells with a bound on one side show the effect of layers and hidden size",
        ),
    ],
)
def test_the_reason_is_named_if_there_is_no_fit(known: tuple[Measured, ...], said: str) -> None:
    with pytest.raises(FitError, match=said):
        fitted(known)


def test_a_size_that_does_not_vary_on_the_map_cannot_be_predicted() -> None:
    found = fitted(tuple(one for one in cells(4, 0.1) if one.place.layers == 2))
    assert "log layers" not in found.predictors
    with pytest.raises(FitError, match="layers is 2 in every cell of the map"):
        found.predict(Place(32, 4, 10))
    assert found.covers(Place(64, 2, 20))
    assert not found.covers(Place(64, 2, 21))
