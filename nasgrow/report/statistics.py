"""Means, differences and effects, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from scipy import stats  # type: ignore[import-untyped]

CONFIDENCE = 0.95

BySeed = Mapping[int, float]
"""The loss of each seed."""


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
    mean, count = fmean(values), len(values)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * math.sqrt(variance(values) / count)
    return Estimate(mean, mean - half, mean + half)


def difference(ours: BySeed, theirs: BySeed) -> Estimate:
    """The mean of ours less that of theirs, with the t interval of the differences seed by seed.

    Runs with one seed see the same text in the same order, and shapes that have a part in common start it
    with the same values. So what a seed does to one of them it mostly does to the other, and a difference of
    the two varies less than either. Seeds that only one of them has count nothing.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return Estimate(fmean(ours.values()) - fmean(theirs.values()), None, None)
    return mean_of([ours[seed] - theirs[seed] for seed in seeds])


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
