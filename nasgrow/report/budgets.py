"""Compute saved at equal loss, read off a baseline curve: the loss of fixed shapes over the budget.

Each point of the curve is trained from scratch, tuned and fully decayed. Between the points, the
loss is interpolated linearly over the logarithm of the budget. The 95% interval of the budget of
equal loss reaches from the smallest to the largest budget at which the curve's loss does not differ
from the schedule's at the 95% level (an inverted test).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nasgrow.report.statistics import BySeed, Estimate, crossed, intervals, loss, matrices
from nasgrow.report.trajectory import Floats, crossing

TRIED_BUDGETS = 2001
"""The number of budgets that are tested to find the interval."""


@dataclass(frozen=True)
class Rung:
    """One point of a baseline curve: the losses of a fixed shape at ``times`` the study's budget."""

    times: float
    losses: BySeed


@dataclass(frozen=True)
class EqualLoss:
    """The budget of equal loss: the one at which the baseline reaches the schedule's loss.

    Budgets are multiples of the schedule's budget.

    Attributes:
        times: The budget of equal loss; None if it lies outside the budgets trained.
        low: The lower end of its 95% interval; None if that is not above the smallest budget
            trained, or if there is no interval.
        high: The upper end of the interval; None if that is not below the largest budget trained,
            or if there is no interval.
        sure: Whether there are enough seeds for an interval: at least two that the schedule and all
            rungs share. Set to False for trials that were chosen by these losses.
        rungs: The points of the baseline curve, the smallest budget first.
        above: Whether the schedule's mean loss is lower than that of every rung. If ``times`` is
            None, the budget of equal loss is then above the largest one trained, else below the
            smallest.
        apart: Whether the schedule's loss differs from the curve, at the 95% level, at every budget
            trained; then there is no interval. It has a meaning only if ``sure``.
    """

    times: float | None
    low: float | None
    high: float | None
    sure: bool
    rungs: tuple[Rung, ...]
    above: bool
    apart: bool


def share(times: float) -> float:
    """Return the fraction of compute saved by spending one budget instead of ``times`` budgets.

    It is below 0 if ``times`` is below 1.
    """
    return 1 - 1 / times


def equal_loss(ours: BySeed, rungs: Sequence[Rung]) -> EqualLoss | None:
    """Find the budget at which the curve has the schedule's loss; None with fewer than two rungs."""
    rungs = sorted(rungs, key=lambda rung: rung.times)
    if len(rungs) < 2:
        return None
    times = np.array([rung.times for rung in rungs])
    means = np.array([loss(rung.losses) for rung in rungs])
    level = loss(ours)
    inside = means.min() <= level < means[0]
    found = crossing(np.log(times), means, level) if inside else None
    sure = len(set(ours).intersection(*(rung.losses for rung in rungs))) > 1
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


def apart_at(ours: BySeed, rungs: Sequence[Rung], times: float) -> Estimate | None:
    """Return the schedule's loss minus the baseline curve's at a budget.

    Only the place on the curve depends on the budget; the schedule's losses are taken as they are.
    The losses are paired by seed. The 95% interval needs two seeds that both share; with one seed
    its ends are None.

    Return None if the budget lies outside those trained, or if the schedule and the rungs next to
    the budget share no seed.

    Args:
        ours: The schedule's losses.
        rungs: The points of the baseline curve, in any order.
        times: The budget, as a multiple of the study's.
    """
    rungs = sorted(rungs, key=lambda rung: rung.times)
    if not rungs or not rungs[0].times <= times <= rungs[-1].times:
        return None
    apart = _apart(ours, rungs, times)
    return crossed(apart) if len(apart) else None


def _alike(ours: BySeed, rungs: Sequence[Rung]) -> Floats:
    """Return the budgets of a fine grid at which the curve does not differ from ours at the 95% level."""
    grid = np.geomspace(rungs[0].times, rungs[-1].times, TRIED_BUDGETS)
    grid[-1] = rungs[-1].times
    place = np.interp(np.log(grid), np.log([rung.times for rung in rungs]), np.arange(len(rungs)))
    inside = np.zeros(len(grid), dtype=bool)
    for before, after in pairwise(range(len(rungs))):
        near = [rungs[before].losses, rungs[after].losses]
        seeds = sorted(set(ours).intersection(*near))
        own, low_end, high_end = matrices([ours, *near], seeds)
        here = (before <= place) & (place <= after)
        share = (place[here] - before)[:, None, None]
        _, low, high = intervals(own - (1 - share) * low_end - share * high_end)
        inside[here] = (low <= 0) & (high >= 0)
    alike: Floats = grid[inside]
    return alike


def _apart(ours: BySeed, rungs: Sequence[Rung], times: float) -> Floats:
    """Return our loss minus the curve's at a budget, with seeds as rows and segments as columns.

    Only the seeds that we and the rungs beside the budget share have a row.
    """
    weights = _weights(rungs, times)
    near = [rung.losses for rung, weight in zip(rungs, weights, strict=True) if weight > 0]
    own, *others = matrices([ours, *near], sorted(set(ours).intersection(*near)))
    curve: Floats = np.tensordot(weights[weights > 0], np.array(others), axes=1)
    return own - curve


def _weights(rungs: Sequence[Rung], times: float) -> Floats:
    """Return the weight of each rung in the linear interpolation over the logarithm of the budget."""
    place = np.interp(np.log(times), np.log([rung.times for rung in rungs]), np.arange(len(rungs)))
    weights: Floats = np.clip(1 - np.abs(place - np.arange(len(rungs))), 0, None)
    return weights
