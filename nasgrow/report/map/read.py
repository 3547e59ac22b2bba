"""Read and judge the cells of a map: the compute saved, and whether growth beats the best fixed shape."""

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
"""The name of the currency that the map compares besides FLOPs."""


@dataclass(frozen=True)
class Judged:
    """A cell whose study has started.

    Attributes:
        cell: The cell.
        found: Its records and verdict.
        final: The best schedule against its final shape from scratch; None if either has not finished.
        fixed: The best schedule against the best fixed shape searched, which may be the final one.
    """

    cell: Cell
    found: Findings
    final: Comparison | None
    fixed: Comparison | None

    @property
    def confirmed(self) -> bool:
        """Whether the cell has a verdict from test losses of fresh seeds."""
        verdict = self.found.verdict
        return verdict.confirmed and (self.final is not None or verdict.diverged)

    @property
    def saved(self) -> EqualLoss | None:
        """The budget that the final shape from scratch needs for the schedule's loss."""
        return None if self.final is None else self.final.equal

    @property
    def saves(self) -> Outcome:
        """Whether growth beats its final shape from scratch at equal compute, at the 95% level.

        ``open`` if the cell is not confirmed; ``lost`` if every confirmed schedule diverged.
        """
        return self._outcome(self.final)

    @property
    def beats(self) -> Outcome:
        """Whether growth beats the best fixed shape at equal compute, at the 95% level; see ``saves``."""
        return self._outcome(self.fixed)

    def _outcome(self, comparison: Comparison | None) -> Outcome:
        if self.found.verdict.diverged:
            return "lost"
        return "open" if comparison is None or not self.confirmed else comparison.outcome


@dataclass(frozen=True)
class MapRecords:
    """The records of a map.

    Attributes:
        name: The map's name.
        map: Its definition.
        cells: The cells whose studies have started, the cheapest first.
    """

    name: str
    map: GrowthMap
    cells: tuple[Judged, ...]

    @property
    def confirmed(self) -> list[Judged]:
        """The cells with a confirmed verdict."""
        return [one for one in self.cells if one.confirmed]

    def at(self, row: int, column: int) -> Judged | None:
        """Return the cell of a final shape (row) and budget (column); None if it is not confirmed.

        Before that its rivals may not have been searched yet, so any comparison would flatter growth.
        """
        name = self.map.grid[row][column].folder
        return next((one for one in self.confirmed if one.cell.folder == name), None)


def read_map(found: GrowthMap) -> MapRecords:
    """Read and judge the cells of a map whose studies have started."""
    return MapRecords(found.name, found, tuple(_judged(found.cells)))


def _judged(cells: Iterable[Cell]) -> Iterable[Judged]:
    for cell in cells:
        if (cell.folder / STUDY).is_file():
            yield judge_cell(cell, cell.folder)


def judge_cell(cell: Cell, folder: Path) -> Judged:
    """Read and judge one cell.

    Raises:
        UserError: The cell's study was started with other settings than the map file now gives it.
    """
    study, _ = open_study(folder)
    changed = differences(study.config, cell.study.config)
    if changed:
        raise UserError(f"{folder}: was started with another map file: {changed[0]}")
    found = find(study, folder)
    comparisons = found.verdict.comparisons
    final = next((one for one in comparisons if one.is_final), None)
    others = [one for one in comparisons if not one.is_final]
    return Judged(cell, found, final, others[0] if others else final)


def apart(comparison: Comparison | None) -> Estimate | None:
    """Return the schedule's loss minus the rival's at the study's budget; None without a comparison."""
    return None if comparison is None else comparison.difference


def at_equal_seconds(comparison: Comparison | None) -> Currency | None:
    """Return the comparison at equal seconds; None if seconds are unknown, or equal at the study's budget."""
    if comparison is None:
        return None
    return next((one for one in comparison.currencies if one.name == SECONDS), None)


def seconds_apart(one: Judged, comparison: Comparison | None) -> Estimate | None:
    """Return the schedule's loss minus the rival's at equal seconds.

    None if step times were not measured, or if the rival was not trained with budgets that take as long.
    """
    currency, ours = at_equal_seconds(comparison), one.found.verdict.ours
    if currency is not None:
        return currency.difference
    measured = ours is not None and ours.per_run("schedule_seconds") > 0
    return apart(comparison) if measured else None  # both take as long at the study's budget
