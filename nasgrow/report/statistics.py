"""Means and differences of losses with 95% intervals, and the variance that a grouping explains."""

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
"""Losses by seed: one for each segment of the text, or one in all without recorded segments."""


@dataclass(frozen=True)
class Estimate:
    """A mean or a difference of means with its 95% interval; without one, both ends are None."""

    value: float
    low: float | None
    high: float | None


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the mean of one or more values with its t interval, which needs two values."""
    if len(values) < 2:
        return Estimate(fmean(values), None, None)
    mean, count = fmean(values), len(values)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * math.sqrt(variance(values) / count)
    return Estimate(mean, mean - half, mean + half)


def difference(ours: BySeed, theirs: BySeed) -> Estimate:
    """Return mean(our losses) - mean(their losses), with a paired 95% interval over seeds and text.

    Losses are paired by seed and by segment of the text. Runs with the same seed and batch size see
    the same batches, and start their common parameters from the same values. Pairing therefore
    removes the variance that both sides share. Only common seeds count. With one common seed there
    is no interval. Without a common seed, return the unpaired difference over all seeds, also
    without an interval.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return Estimate(loss(ours) - loss(theirs), None, None)
    own, other = matrices([ours, theirs], seeds)
    return crossed(own - other)


def loss(losses: BySeed) -> float:
    """Return the mean loss over seeds and segments of text."""
    return fmean(fmean(parts) for parts in losses.values())


def matrices(sides: Sequence[BySeed], seeds: Sequence[int]) -> list[Floats]:
    """Return a matrix of losses for each side: a row for each seed, a column for each segment.

    If the sides or seeds differ in their number of segments, all matrices have one column of means.

    Args:
        sides: The losses of each side.
        seeds: The rows, which every side must have.
    """
    alike = len({len(side[seed]) for side in sides for seed in seeds}) == 1
    return [np.array([side[seed] if alike else (fmean(side[seed]),) for seed in seeds]) for side in sides]


def crossed(values: Floats) -> Estimate:
    """Return the mean of a matrix with its 95% interval.

    The rows are seeds, the columns segments of text, and both are random effects. The variance of
    the mean is the variance over seeds plus the variance over segments. This sum counts the
    residual variance twice, so the interval is rather too wide than too narrow. Degrees of freedom
    are Satterthwaite's. The interval is never narrower than the one over seeds alone, since few
    seeds estimate a variance badly. With one segment it is the one over seeds. With one seed there
    is none.
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
    """Return the share of the variance of all values that their groups explain, corrected for chance.

    This is epsilon squared: eta squared minus the share that as many random groups would explain. A
    negative value, which means no effect, becomes 0. It is also 0 with fewer than two groups,
    without a group of several values, or if all values are equal.
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
