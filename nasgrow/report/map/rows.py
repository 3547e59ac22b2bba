"""Read the compute saved in each cell off the whole row of the map.

The cells of a row have the same final shape at several budgets, each tuned and fully decayed. So
they are points of one baseline curve, and a cell's budget of equal loss is read off all of them.
The best fixed shapes of the row's budgets are a curve as well.
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

Place = tuple[Cell, CellResult]


def along_rows(found: GrowthMap, results: Sequence[CellResult]) -> tuple[CellResult, ...]:
    """Return all results, those of confirmed cells with savings read off the curve of their row.

    The loss at equal seconds is read off that curve too: a rival that trains twice as long is taken
    to have twice the budget, as with the cell's own batch size.
    """
    by_name = {one.name: one for one in results}
    for row in _rows(found, results):
        for cell, one in row:
            others = [(of.study.budget / cell.study.budget, two) for of, two in row if of is not cell]
            assert one.losses is not None
            assert one.final is not None
            own = one.final.rungs
            final = _on(one.losses, one.final, own, [(times, two.final) for times, two in others])
            fixed = one.fixed
            if fixed is not None:
                same = fixed.shape == one.final.shape  # the others are of the final shape, not of the best
                own = tuple(rung for rung in fixed.rungs if rung.times == 1) if same else fixed.rungs
                fixed = _on(one.losses, fixed, own, [(times, two.fixed) for times, two in others])
            by_name[one.name] = replace(one, final=final, fixed=fixed)
    return tuple(by_name.values())


def interpolation_errors(found: GrowthMap, results: Sequence[CellResult]) -> Iterator[tuple[float, float]]:
    """Yield how far off the final shape's loss is if interpolated from the two budgets beside it.

    There is one pair for each cell of a row with cells on both sides: the interpolated loss minus
    the measured one, and the larger neighbour's budget as a multiple of the smaller one's.
    """
    for row in _rows(found, results):
        cells = sorted(row, key=lambda place: place[0].study.budget)
        for three in zip(cells, cells[1:], cells[2:], strict=False):
            budgets = [math.log(cell.study.budget) for cell, _ in three]
            low, measured, high = (_final_loss(one) for _, one in three)
            between = float(np.interp(budgets[1], [budgets[0], budgets[2]], [low, high]))
            yield between - measured, math.exp(budgets[2] - budgets[0])


def _rows(found: GrowthMap, results: Sequence[CellResult]) -> Iterator[list[Place]]:
    """Yield the cells that give points of a curve: those of a row that were trained on the same text.

    They are confirmed with as many seeds as the map asks for, and not all of their schedules diverged.
    """
    by_name = {one.name: one for one in results}
    for row in found.grid:
        known = [(cell, by_name[cell.name]) for cell in row if cell.name in by_name]
        known = [
            (cell, one)
            for cell, one in known
            if one.confirmed and one.losses and one.final and one.seeds >= found.config.confirm.seeds
        ]
        for texts in dict.fromkeys(one.texts for _, one in known):
            yield [(cell, one) for cell, one in known if one.texts == texts]


def _on(
    ours: BySeed, rival: Rival, own: Sequence[Rung], others: Iterable[tuple[float, Rival | None]]
) -> Rival:
    """Compare a schedule with the curve of a rival's own rungs and the rivals of other budgets."""
    rungs = list(own)
    for times, other in others:
        if other is not None and not any(math.isclose(rung.times, times, rel_tol=SAME) for rung in rungs):
            rungs += [Rung(times, rung.losses) for rung in other.rungs if rung.times == 1]
    at_equal_seconds = rival.at_equal_seconds
    if rival.seconds is not None:
        at_equal_seconds = apart_at(ours, rungs, rival.seconds)
    return replace(rival, saved=equal_loss(ours, rungs), at_equal_seconds=at_equal_seconds)


def _final_loss(one: CellResult) -> float:
    assert one.final is not None
    return next(loss(rung.losses) for rung in one.final.rungs if rung.times == 1)
