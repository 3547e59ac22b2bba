from __future__ import annotations

import pytest
from scipy import stats  # type: ignore[import-untyped]

from nasgrow.report.statistics import difference, explained, mean_of


def test_the_interval_of_a_mean_is_students() -> None:
    values = [1.0, 2.0, 4.0, 7.0]
    estimate = mean_of(values)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert estimate.low == pytest.approx(low)
    assert estimate.high == pytest.approx(high)


def test_seeds_that_agree_to_the_bit_have_an_interval_without_width() -> None:
    estimate = difference({1: 2.0, 2: 2.0}, {1: 3.0, 2: 3.0})
    assert (estimate.low, estimate.value, estimate.high) == (-1.0, -1.0, -1.0)


def test_a_difference_is_taken_seed_by_seed() -> None:
    ours, theirs = {1: 2.00, 2: 2.30, 3: 2.60}, {3: 2.62, 2: 2.31, 1: 2.01, 7: 9.0}
    estimate = difference(ours, theirs)
    low, high = stats.ttest_rel([2.00, 2.30, 2.60], [2.01, 2.31, 2.62]).confidence_interval(0.95)
    assert estimate.value == pytest.approx(-0.04 / 3)
    assert estimate.low == pytest.approx(low)
    assert estimate.high == pytest.approx(high)


def test_losses_without_a_common_seed_have_no_interval() -> None:
    assert difference({1: 2.0, 2: 2.0}, {3: 3.0, 4: 3.0}).low is None


def test_groups_that_explain_all_and_nothing() -> None:
    assert explained({"a": [1.0, 1.0], "b": [2.0, 2.0]}) == 1.0
    assert explained({"a": [1.0, 2.0], "b": [1.0, 2.0]}) == 0.0
    assert explained({"a": [1.0], "b": [2.0]}) == 0.0, "a group for each value explains nothing"


def test_explained_is_epsilon_squared() -> None:
    # Between 6, within 4 with 4 degrees of freedom, total 10: (6 - 1 * 4 / 4) / 10.
    assert explained({"a": [0.0, 1.0, 2.0], "b": [2.0, 3.0, 4.0]}) == pytest.approx((6 - 1) / 10)
