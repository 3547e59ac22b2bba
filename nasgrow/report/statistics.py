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
    if len(values) < 2:
        return Estimate(float(values.mean()), None, None)
    return Estimate(*(float(one) for one in intervals(values)))


def intervals(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the mean, and the ends of its interval, of each matrix in a stack, as :func:`crossed` does.

    Args:
        values: Matrices in the last two axes: at least two seeds as rows, segments as columns.
    """
    seeds, texts = values.shape[-2:]
    by_seed = values.mean(axis=-1)
    over_seeds = by_seed.var(axis=-1, ddof=1) / seeds
    half = stats.t.ppf((1 + CONFIDENCE) / 2, seeds - 1) * np.sqrt(over_seeds)
    if texts > 1:
        over_texts = values.mean(axis=-2).var(axis=-1, ddof=1) / texts
        squared = over_seeds + over_texts
        parts = over_seeds**2 / (seeds - 1) + over_texts**2 / (texts - 1)
        freedom = np.divide(squared**2, parts, out=np.ones_like(squared), where=parts > 0)
        half = np.maximum(half, stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(squared))
    mean = by_seed.mean(axis=-1)
    return mean, mean - half, mean + half


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
