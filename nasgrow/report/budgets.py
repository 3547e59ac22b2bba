"""A baseline curve: the loss of fixed shapes under several budgets, and what a schedule saves over it.

Each point of the curve is trained from scratch, tuned and fully decayed. In between, the loss is taken as
straight over the logarithm of the budget. The interval of a saving holds all budgets whose loss does not
differ from the schedule's at the 95% level (a test inverted), with the variance over seeds of both sides and
Satterthwaite's degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from nasgrow.report.statistics import CONFIDENCE, Estimate
from nasgrow.report.trajectory import Floats, crossing

POINTS = 2001
"""Budgets at which the interval is tried."""


@dataclass(frozen=True)
class Rung:
    """The losses, over seeds, of a fixed shape with ``times`` the study's budget."""

    times: float
    losses: tuple[float, ...]


@dataclass(frozen=True)
class EqualLoss:
    """The budget that the baseline needs for the schedule's loss, as a multiple of the schedule's.

    Attributes:
        times: That budget; None if it lies outside those trained.
        low: The lower end of its 95% interval; None if that lies below the smallest budget trained.
        high: The upper end; None if that lies above the largest.
        sure: Whether there is an interval: it takes two seeds of each.
        rungs: The budgets trained.
        above: Whether the schedule's loss is lower than any of them.
        apart: Whether it differs from that at every budget between them, at the 95% level.
    """

    times: float | None
    low: float | None
    high: float | None
    sure: bool
    rungs: tuple[Rung, ...]
    above: bool
    apart: bool


def share(times: float) -> float:
    """The part of ``times`` budgets that one budget saves."""
    return 1 - 1 / times


def equal_loss(ours: Sequence[float], rungs: Sequence[Rung]) -> EqualLoss | None:
    """Find the budget of equal loss; None with fewer than two rungs."""
    rungs = sorted(rungs, key=lambda rung: rung.times)
    if len(rungs) < 2:
        return None
    times = np.array([rung.times for rung in rungs])
    means = np.array([fmean(rung.losses) for rung in rungs])
    level = fmean(ours)
    inside = means.min() <= level < means[0]
    found = crossing(np.log(times), means, level) if inside else None
    sure = len(ours) > 1 and all(len(rung.losses) > 1 for rung in rungs)
    alike = _alike(ours, rungs) if sure else np.array([])
    ends = (float(alike[0]), float(alike[-1])) if len(alike) else (None, None)
    return EqualLoss(
        times=None if found is None else float(np.exp(found)),
        low=None if ends[0] == times[0] else ends[0],
        high=None if ends[1] == times[-1] else ends[1],
        sure=sure,
        rungs=tuple(rungs),
        above=bool(level < means.min()),
        apart=sure and not len(alike),
    )


def apart_at(ours: Sequence[float], rungs: Sequence[Rung], times: float) -> Estimate | None:
    """The schedule's loss less that of the curve at a budget; None outside the budgets trained."""
    rungs = sorted(rungs, key=lambda rung: rung.times)
    if not rungs or not rungs[0].times <= times <= rungs[-1].times:
        return None
    sure = len(ours) > 1 and all(len(rung.losses) > 1 for rung in rungs)
    if not sure:
        means = [fmean(rung.losses) for rung in rungs]
        value = fmean(ours) - float(np.interp(np.log(times), np.log([rung.times for rung in rungs]), means))
        return Estimate(value, None, None)
    (mean,), (half,) = _curve(ours, rungs, np.array([times]))
    value = fmean(ours) - float(mean)
    return Estimate(value, value - float(half), value + float(half))


def _alike(ours: Sequence[float], rungs: Sequence[Rung]) -> Floats:
    """The budgets, among many, whose loss does not differ from ours."""
    grid = np.geomspace(rungs[0].times, rungs[-1].times, POINTS)
    grid[-1] = rungs[-1].times
    means, half = _curve(ours, rungs, grid)
    alike: Floats = grid[np.abs(means - fmean(ours)) <= half]
    return alike


def _curve(ours: Sequence[float], rungs: Sequence[Rung], grid: Floats) -> tuple[Floats, Floats]:
    """The curve at some budgets, and half the width of the 95% interval of its difference from ours."""
    place = np.interp(np.log(grid), np.log([rung.times for rung in rungs]), np.arange(len(rungs)))
    weights = np.clip(1 - np.abs(place[:, None] - np.arange(len(rungs))), 0, None)
    means = weights @ np.array([fmean(rung.losses) for rung in rungs])
    errors = weights**2 * np.array([variance(rung.losses) / len(rung.losses) for rung in rungs])
    own = variance(ours) / len(ours)
    freedoms = np.array([len(rung.losses) - 1 for rung in rungs])
    squared = own + errors.sum(axis=1)
    terms = own**2 / (len(ours) - 1) + (errors**2 / freedoms).sum(axis=1)
    freedom = np.divide(squared**2, terms, out=np.ones_like(squared), where=terms > 0)
    return means, stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(squared)
