from __future__ import annotations

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from nasgrow.report.budgets import Rung, apart_at
from nasgrow.report.statistics import crossed, difference, explained, intervals, mean_of


def test_the_interval_of_a_mean_is_students() -> None:
    values = [1.0, 2.0, 4.0, 7.0]
    estimate = mean_of(values)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert estimate.low == pytest.approx(low)
    assert estimate.high == pytest.approx(high)


def test_seeds_that_agree_to_the_bit_have_an_interval_without_width() -> None:
    estimate = difference({1: (2.0,), 2: (2.0,)}, {1: (3.0,), 2: (3.0,)})
    assert (estimate.low, estimate.value, estimate.high) == (-1.0, -1.0, -1.0)


def test_a_difference_is_taken_seed_by_seed() -> None:
    ours = {1: (2.00,), 2: (2.30,), 3: (2.60,)}
    estimate = difference(ours, {3: (2.62,), 2: (2.31,), 1: (2.01,), 7: (9.0,)})
    low, high = stats.ttest_rel([2.00, 2.30, 2.60], [2.01, 2.31, 2.62]).confidence_interval(0.95)
    assert estimate.value == pytest.approx(-0.04 / 3)
    assert estimate.low == pytest.approx(low)
    assert estimate.high == pytest.approx(high)


def test_losses_without_a_common_seed_have_no_interval() -> None:
    assert difference({1: (2.0,), 2: (2.0,)}, {3: (3.0,), 4: (3.0,)}).low is None


def test_where_not_all_recorded_stretches_means_are_compared() -> None:
    ours = {1: (1.0, 2.0), 2: (1.5,), 3: (1.0, 1.8)}
    theirs = {1: (1.6,), 2: (1.5, 1.5), 3: (1.5, 1.5)}
    low, high = stats.ttest_rel([1.5, 1.5, 1.4], [1.6, 1.5, 1.5]).confidence_interval(0.95)
    estimate = difference(ours, theirs)
    assert estimate.low == pytest.approx(low)
    assert estimate.high == pytest.approx(high)


def test_a_budget_that_does_not_count_takes_no_seed_away() -> None:
    ours = {1: (1.0,), 2: (1.1,)}
    rungs = [Rung(0.5, {1: (3.0,)}), Rung(1.0, {1: (2.0,), 2: (2.1,)}), Rung(2.0, {1: (1.0,), 2: (1.1,)})]
    at = apart_at(ours, rungs, 2.0)
    assert at is not None
    assert at.value == pytest.approx(0)
    assert at.low is not None, "both seeds count, though one was not trained with half the budget"


def test_a_difference_that_depends_on_the_text_is_not_sure() -> None:
    # Every seed agrees, but half of the text says the one and half the other.
    ours = dict.fromkeys(range(5), (1.0, 1.0, 1.0, 1.0))
    theirs = {seed: (1.1 + seed * 1e-4, 0.95, 1.1, 0.95) for seed in range(5)}
    estimate = difference(ours, theirs)
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low < 0 < estimate.high
    alone = difference(
        {seed: (sum(parts) / 4,) for seed, parts in ours.items()},
        {seed: (sum(parts) / 4,) for seed, parts in theirs.items()},
    )
    assert alone.value == pytest.approx(estimate.value)
    assert alone.high is not None
    assert alone.high < 0, "over seeds alone it would be a win"


def test_the_interval_over_seeds_and_text_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        seeds, texts = rng.normal(0, 0.02, (5, 1)), rng.normal(0, 0.03, (1, 16))
        estimate = crossed(0.01 + seeds + texts + rng.normal(0, 0.02, (5, 16)))
        assert estimate.low is not None
        assert estimate.high is not None
        held += estimate.low <= 0.01 <= estimate.high
    assert 0.93 <= held / 400 <= 0.99


def test_groups_that_explain_all_and_nothing() -> None:
    assert explained({"a": [1.0, 1.0], "b": [2.0, 2.0]}) == 1.0
    assert explained({"a": [1.0, 2.0], "b": [1.0, 2.0]}) == 0.0
    assert explained({"a": [1.0], "b": [2.0]}) == 0.0, "a group for each value explains nothing"


def test_explained_is_epsilon_squared() -> None:
    # Between 6, within 4 with 4 degrees of freedom, total 10: (6 - 1 * 4 / 4) / 10.
    assert explained({"a": [0.0, 1.0, 2.0], "b": [2.0, 3.0, 4.0]}) == pytest.approx((6 - 1) / 10)


def test_a_stack_of_matrices_has_the_intervals_of_each() -> None:
    values = np.random.default_rng(0).normal(0, 1, (7, 4, 5))
    values[3] = 0.25  # no variance at all
    values[4] = values[4][:, :1]  # none over segments
    for value, low, high, matrix in zip(*intervals(values), values, strict=True):
        alone = crossed(matrix)
        assert (value, low, high) == pytest.approx((alone.value, alone.low, alone.high), abs=1e-12)
    seeds = mean_of([float(mean) for mean in values[4].mean(axis=1)])
    assert crossed(values[4]).low == pytest.approx(seeds.low), "never narrower than over seeds alone"
