"""Means, differences and effects, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from nasgrow.report.trajectory import Floats

CONFIDENCE = 0.95

BySeed = Mapping[int, tuple[float, ...]]
"""By seed: the losses on stretches of the text, or one loss on all of it if stretches were not recorded."""


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
    """The mean of ours less that of theirs, with an interval over seeds and text.

    Differences are taken seed by seed and stretch by stretch. Runs with one seed see the same text in the
    same order, and shapes that have a part in common start it with the same values. So what a seed does to
    one of them it mostly does to the other, and a difference varies less than either. Seeds that only one of
    them has count nothing.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return Estimate(loss(ours) - loss(theirs), None, None)
    own, other = matrices([ours, theirs], seeds)
    return crossed(own - other)


def loss(losses: BySeed) -> float:
    """The mean over seeds and stretches."""
    return fmean(fmean(parts) for parts in losses.values())


def matrices(sides: Sequence[BySeed], seeds: Sequence[int]) -> list[Floats]:
    """The losses of some seeds (rows) on each stretch (columns), for each side.

    Where not all recorded as many stretches, there is one column of means.
    """
    alike = len({len(side[seed]) for side in sides for seed in seeds}) == 1
    return [np.array([side[seed] if alike else (fmean(side[seed]),) for seed in seeds]) for side in sides]


def crossed(values: Floats) -> Estimate:
    """The mean of values for each seed (rows) and stretch of text (columns), both drawn by chance.

    The variance of the mean is that over seeds plus that over stretches, which counts what neither explains
    twice, and so errs on the wide side. Degrees of freedom are Satterthwaite's. The interval is never
    narrower than that over seeds alone: of few seeds the variance is known too badly. One seed has none.
    """
    over_seeds = mean_of([float(mean) for mean in values.mean(axis=1)])
    texts = values.mean(axis=0)
    if over_seeds.low is None or over_seeds.high is None or len(texts) < 2:
        return over_seeds
    seeds, value = len(values), over_seeds.value
    errors = [
        (values.mean(axis=1).var(ddof=1) / seeds, seeds - 1),
        (texts.var(ddof=1) / len(texts), len(texts) - 1),
    ]
    squared = sum(error for error, _ in errors)
    if squared == 0:
        return over_seeds
    freedom = squared**2 / sum(error**2 / own for error, own in errors)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * math.sqrt(squared))
    return Estimate(value, min(over_seeds.low, value - half), max(over_seeds.high, value + half))


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
