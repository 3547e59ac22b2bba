"""Read the compute saved in each cell off the whole row of the map.

The cells of a row have the same final shape at several budgets, each tuned and fully decayed. So they are
points of one baseline curve, and a cell's budget of equal loss is read off all of them. The best fixed
shapes of the row's budgets are a curve as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from nasgrow.experiments.map import Cell, GrowthMap
from nasgrow.report.budgets import Rung, apart_at, equal_loss
from nasgrow.report.map.results import CellResult, Rival
from nasgrow.report.statistics import BySeed, loss

SAME = 1e-3
"""The relative difference below which two budgets count as one."""


def along_rows(found: GrowthMap, results: Sequence[CellResult]) -> tuple[CellResult, ...]:
    """Return all results, with savings and differences at equal seconds read off whole rows.

    Only confirmed cells give points and are changed. A cell gets points from cells that were
    trained on the same text. A cell whose confirmed schedules all diverged gives no points and
    stays as it is.
    """
    by_name = {one.name: one for one in results}
    for row in found.grid:
        known = [(cell, by_name[cell.name]) for cell in row if cell.name in by_name]
        known = [(cell, one) for cell, one in known if one.confirmed and one.losses and one.final]
        for cell, one in known:
            others = [other for other in known if other[0] is not cell and other[1].texts == one.texts]
            assert one.losses is not None
            by_name[one.name] = replace(
                one,
                final=_on(one.losses, one.final, [(_times(of, cell), two.final) for of, two in others]),
                fixed=_on(one.losses, one.fixed, [(_times(of, cell), two.fixed) for of, two in others]),
            )
    return tuple(by_name.values())


def _times(of: Cell, cell: Cell) -> float:
    return of.study.budget / cell.study.budget


def _on(ours: BySeed, rival: Rival | None, others: Iterable[tuple[float, Rival | None]]) -> Rival | None:
    """Compare a schedule with the curve of a rival's losses and those of the other cells."""
    if rival is None:
        return None
    rungs = list(rival.rungs)
    for times, other in others:
        if other is not None and not any(math.isclose(rung.times, times, rel_tol=SAME) for rung in rungs):
            rungs += [Rung(times, rung.losses) for rung in other.rungs if rung.times == 1]
    at_equal_seconds = rival.at_equal_seconds
    if rival.seconds is not None:
        at_equal_seconds = apart_at(ours, rungs, rival.seconds)
    return replace(rival, saved=equal_loss(ours, rungs), at_equal_seconds=at_equal_seconds)


def interpolation_errors(found: GrowthMap, results: Sequence[CellResult]) -> Iterator[tuple[float, float]]:
    """Yield how far off the final shape's loss is if it is interpolated from the two budgets beside it.

    One pair for each confirmed cell with confirmed cells on both sides in its row: the interpolated loss
    minus the measured one, and how many times the smaller neighbour's budget the larger one's is.
    """
    by_name = {one.name: one for one in results if one.confirmed and one.final is not None}
    for row in found.grid:
        cells = sorted((cell for cell in row if cell.name in by_name), key=lambda cell: cell.study.budget)
        for before, cell, after in zip(cells, cells[1:], cells[2:], strict=False):
            budgets = [math.log(one.study.budget) for one in (before, cell, after)]
            low, measured, high = (_final_loss(by_name[one.name]) for one in (before, cell, after))
            between = float(np.interp(budgets[1], [budgets[0], budgets[2]], [low, high]))
            yield between - measured, math.exp(budgets[2] - budgets[0])


def _final_loss(one: CellResult) -> float:
    assert one.final is not None
    return next(loss(rung.losses) for rung in one.final.rungs if rung.times == 1)
