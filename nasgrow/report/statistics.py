"""Means, differences and effects, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from scipy import stats  # type: ignore[import-untyped]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean or a difference of means, and its 95% interval; None where there are too few values for one."""

    value: float
    low: float | None
    high: float | None


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean of some values with its t interval."""
    if len(values) < 2:
        return Estimate(fmean(values), None, None)
    return _around(fmean(values), variance(values) / len(values), len(values) - 1)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """The mean of ours less that of theirs, with Welch's t interval."""
    value = fmean(ours) - fmean(theirs)
    if len(ours) < 2 or len(theirs) < 2:
        return Estimate(value, None, None)
    a, b = variance(ours) / len(ours), variance(theirs) / len(theirs)
    if a + b == 0:
        return Estimate(value, value, value)
    freedom = (a + b) ** 2 / (a**2 / (len(ours) - 1) + b**2 / (len(theirs) - 1))
    return _around(value, a + b, freedom)


def _around(value: float, squared_error: float, freedom: float) -> Estimate:
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(squared_error)
    return Estimate(value, value - half, value + half)


def explained(groups: Mapping[str, Sequence[float]]) -> float:
    """The share of the variance of all values that their groups explain, corrected for chance.

    This is epsilon squared: eta squared less what as many groups of random values would explain. It can come
    out below 0, which means none, and is cut off there.
    """
    every = [value for group in groups.values() for value in group]
    freedom = len(every) - len(groups)
    if freedom < 1 or len(groups) < 2:
        return 0.0
    whole = fmean(every)
    total = sum((value - whole) ** 2 for value in every)
    within = sum((value - fmean(group)) ** 2 for group in groups.values() for value in group)
    if total == 0:
        return 0.0
    return max(0.0, (total - within - (len(groups) - 1) * within / freedom) / total)
