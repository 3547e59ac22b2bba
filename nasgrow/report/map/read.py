"""The cells of a map, read and judged: what growth saves, and whether it beats the best fixed shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nasgrow.errors import UserError
from nasgrow.experiments.map import Cell, GrowthMap
from nasgrow.report.budgets import EqualLoss
from nasgrow.report.findings import Findings, find
from nasgrow.report.statistics import Estimate
from nasgrow.report.verdict import Comparison, Currency, Outcome
from nasgrow.study.config import STUDY, differences
from nasgrow.study.study import open_study

SECONDS = "seconds"
"""The currency that is read beside FLOPs."""


@dataclass(frozen=True)
class Judged:
    """A cell that has begun.

    Attributes:
        cell: The cell.
        found: What its records say.
        final: The best schedule against its final shape from scratch; None if nothing has finished.
        fixed: The same against the best fixed shape searched, which may be the final one.
    """

    cell: Cell
    found: Findings
    final: Comparison | None
    fixed: Comparison | None

    @property
    def confirmed(self) -> bool:
        """Whether fresh seeds on the test split decide."""
        verdict = self.found.verdict
        return verdict.confirmed and (self.final is not None or verdict.diverged)

    @property
    def saved(self) -> EqualLoss | None:
        """The budget that the final shape from scratch needs for the schedule's loss."""
        return None if self.final is None else self.final.equal

    @property
    def saves(self) -> Outcome:
        """Whether growth saves compute over the final shape, at the 95% level."""
        return self._outcome(self.final)

    @property
    def beats(self) -> Outcome:
        """Whether growth beats the best fixed shape at equal compute, at the 95% level."""
        return self._outcome(self.fixed)

    def _outcome(self, comparison: Comparison | None) -> Outcome:
        if self.found.verdict.diverged:
            return "lost"
        return "open" if comparison is None or not self.confirmed else comparison.outcome


@dataclass(frozen=True)
class MapRecords:
    """A map, read.

    Attributes:
        name: Its name.
        map: What it is.
        cells: Those that have begun, the cheapest first.
    """

    name: str
    map: GrowthMap
    cells: tuple[Judged, ...]

    @property
    def confirmed(self) -> list[Judged]:
        """The cells with a verdict."""
        return [one for one in self.cells if one.confirmed]

    def at(self, row: int, column: int) -> Judged | None:
        """The cell of a final shape and a budget, in the order of the map's file."""
        name = self.map.grid[row][column].folder
        return next((one for one in self.cells if one.cell.folder == name), None)


def read_map(found: GrowthMap) -> MapRecords:
    """Read and judge what the cells of a map have recorded."""
    return MapRecords(found.name, found, tuple(_judged(found.cells)))


def _judged(cells: Iterable[Cell]) -> Iterable[Judged]:
    for cell in cells:
        if (cell.folder / STUDY).is_file():
            yield judge_cell(cell, cell.folder)


def judge_cell(cell: Cell, folder: Path) -> Judged:
    """Read and judge one cell.

    Raises:
        UserError: It was begun with another file.
    """
    study, _ = open_study(folder)
    changed = differences(study.config, cell.study.config)
    if changed:
        raise UserError(f"{folder}: was begun with another map file: {changed[0]}")
    found = find(study, folder)
    comparisons = found.verdict.comparisons
    final = next((one for one in comparisons if one.is_final), None)
    others = [one for one in comparisons if not one.is_final]
    return Judged(cell, found, final, others[0] if others else final)


def apart(comparison: Comparison | None) -> Estimate | None:
    """The difference of losses at the study's budget."""
    return None if comparison is None else comparison.difference


def at_equal_seconds(comparison: Comparison | None) -> Currency | None:
    """A comparison at equal seconds; None if it is unknown, or seconds are equal at the study's budget."""
    if comparison is None:
        return None
    return next((one for one in comparison.currencies if one.name == SECONDS), None)


def seconds_apart(one: Judged, comparison: Comparison | None) -> Estimate | None:
    """The difference of losses at equal seconds; None if these were not measured, or not trained for."""
    currency, ours = at_equal_seconds(comparison), one.found.verdict.ours
    if currency is not None:
        return currency.difference
    measured = ours is not None and ours.per_run("schedule_seconds") > 0
    return apart(comparison) if measured else None  # both take as long at the study's budget
