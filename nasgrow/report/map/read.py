"""Read and judge the cells of a map: the compute saved, and whether growth beats the best fixed shape.

The result of a cell is plain data, which ``summary.json`` holds. So a map that is continued on another
machine, or without its runs, keeps the confirmed cells of its report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from nasgrow.errors import UserError
from nasgrow.experiments.map import Cell, Confirmed, GrowthMap
from nasgrow.report.budgets import EqualLoss
from nasgrow.report.findings import Findings, find
from nasgrow.report.load import Records
from nasgrow.report.statistics import Estimate
from nasgrow.report.verdict import Comparison, Outcome
from nasgrow.strict import read_as
from nasgrow.study.config import STUDY, differences, study_fingerprint
from nasgrow.study.study import open_study

SUMMARY = "summary.json"
"""The file of a map's report that holds the results of its cells."""

MOST_SUMMARY_BYTES = 16_000_000
"""The most bytes of that file. A cell takes some 20,000, with three seeds and three budgets."""


@dataclass(frozen=True)
class Rival:
    """The best schedule of a cell against one fixed shape.

    Attributes:
        shape: The fixed shape.
        loss: Its mean loss at the study's budget.
        outcome: Whether growth beats it at equal compute, at the 95% level; ``open`` if not confirmed.
        difference: The schedule's loss minus the rival's.
        at_equal_seconds: The same at equal seconds; None if step times were not measured, or if the rival
            was not trained with budgets that take as long.
        seconds: The schedule's seconds divided by the rival's; None if they are unknown or alike.
        saved: The budget at which the rival has the schedule's loss; None if it has one budget only.
    """

    shape: str
    loss: float
    outcome: Outcome
    difference: Estimate
    at_equal_seconds: Estimate | None
    seconds: float | None
    saved: EqualLoss | None


@dataclass(frozen=True)
class Spent:
    """The trials of a cell: their number, charged and executed FLOPs, and seconds of training."""

    trials: int
    charged: float
    executed: float
    seconds: float


@dataclass(frozen=True)
class CellResult:
    """The result of a cell whose study has started.

    Attributes:
        name: The cell's name.
        study: What it answers: the fingerprint of its study, and how it is confirmed.
        texts: The fingerprints of the data of its runs.
        confirmed: Whether it has a verdict from test losses of fresh seeds.
        diverged: Whether every confirmed schedule diverged; then growth has lost.
        schedule: The best schedule in words; None if no schedule has finished.
        loss: The mean loss of that schedule.
        final: The schedule against the final shape from scratch; None if either has not finished.
        fixed: The schedule against the best fixed shape searched, which may be the final one.
        weaknesses: The weaknesses of its verdict, a sentence each.
        spent: What it cost.
    """

    name: str
    study: str
    texts: tuple[str, ...]
    confirmed: bool
    diverged: bool
    schedule: str | None
    loss: float | None
    final: Rival | None
    fixed: Rival | None
    weaknesses: tuple[str, ...]
    spent: Spent

    @property
    def split(self) -> str:
        """The split on which its losses were measured."""
        return "test" if self.confirmed else "validation"

    @property
    def saves(self) -> Outcome:
        """Whether growth beats its final shape from scratch at equal compute, at the 95% level."""
        return self._outcome(self.final)

    @property
    def beats(self) -> Outcome:
        """Whether growth beats the best fixed shape at equal compute, at the 95% level."""
        return self._outcome(self.fixed)

    def _outcome(self, rival: Rival | None) -> Outcome:
        if self.diverged:
            return "lost"
        return "open" if rival is None else rival.outcome


@dataclass(frozen=True)
class _Published:
    cells: Mapping[str, CellResult]


_PUBLISHED = TypeAdapter(_Published)


@dataclass(frozen=True)
class MapRecords:
    """The results of a map.

    Attributes:
        name: The map's name.
        map: Its definition.
        cells: The results of cells whose studies have started, the cheapest first.
        records: The records of the cells that were read from their studies' folders, by name.
    """

    name: str
    map: GrowthMap
    cells: tuple[CellResult, ...]
    records: Mapping[str, Records]

    @property
    def confirmed(self) -> list[CellResult]:
        """The cells with a confirmed verdict."""
        return [one for one in self.cells if one.confirmed]

    def at(self, row: int, column: int) -> CellResult | None:
        """Return the result for a final shape (row) and budget (column); None if it is not confirmed.

        Before that its rivals may not have been searched yet, so any comparison would flatter growth.
        """
        name = self.map.grid[row][column].name
        return next((one for one in self.confirmed if one.name == name), None)


def read_map(found: GrowthMap, report: Path) -> MapRecords:
    """Read and judge the cells of a map whose studies have started.

    Args:
        found: The map.
        report: The folder of its report. Its confirmed cells count where no confirmed study is at hand.
    """
    published = read_published(found, report)
    results, records = [], {}
    for cell in found.cells:
        if (cell.folder / STUDY).is_file():
            result, own = judge_cell(cell, found.config.confirm)
            if result.confirmed or cell.name not in published:
                results.append(result)
                records[cell.name] = own
                continue
        if cell.name in published:
            results.append(published[cell.name])
    return MapRecords(found.name, found, tuple(results), records)


def read_published(found: GrowthMap, report: Path) -> dict[str, CellResult]:
    """Return the confirmed cells of an earlier report, by name, without those whose study has changed."""
    if not (report / SUMMARY).exists():
        return {}
    there = read_as(report / SUMMARY, _PUBLISHED, MOST_SUMMARY_BYTES).cells
    return {
        cell.name: one
        for cell in found.cells
        if (one := there.get(cell.name)) is not None
        and one.confirmed
        and one.study == _question(cell, found.config.confirm)
    }


def _question(cell: Cell, confirm: Confirmed) -> str:
    return f"{study_fingerprint(cell.study.config)}, top {confirm.top}, {confirm.seeds} seeds"


def judge_cell(cell: Cell, confirm: Confirmed) -> tuple[CellResult, Records]:
    """Read and judge the study of a cell.

    Raises:
        UserError: The cell's study was started with other settings than the map file now gives it.
    """
    study, _ = open_study(cell.folder)
    changed = differences(study.config, cell.study.config)
    if changed:
        raise UserError(f"{cell.folder}: was started with another map file: {changed[0]}")
    found = find(study, cell.folder)
    verdict, trials = found.verdict, [trial.record for trial in found.records.trials]
    rivals = {one.is_final: _rival(one, found) for one in reversed(verdict.comparisons)}
    result = CellResult(
        name=cell.name,
        study=_question(cell, confirm),
        texts=tuple(sorted(found.records.origins.fingerprints)),
        confirmed=verdict.confirmed and (True in rivals or verdict.diverged),
        diverged=verdict.diverged,
        schedule=verdict.ours.trial.record.words if verdict.ours else None,
        loss=verdict.ours.mean if verdict.ours else None,
        final=rivals.get(True),
        fixed=rivals.get(False, rivals.get(True)),
        weaknesses=tuple(found.integrity.weaknesses),
        spent=Spent(
            trials=len(trials),
            charged=sum(one.charged for one in trials),
            executed=sum(one.executed for one in trials),
            seconds=sum(one.seconds for one in trials),
        ),
    )
    return result, found.records


def _rival(comparison: Comparison, found: Findings) -> Rival:
    seconds = comparison.seconds
    return Rival(
        shape=str(comparison.theirs.trial.schedule.start),
        loss=comparison.theirs.mean,
        outcome=comparison.outcome if found.verdict.confirmed else "open",
        difference=comparison.difference,
        at_equal_seconds=_at_equal_seconds(comparison, found),
        seconds=None if seconds is None else seconds.ratio,
        saved=comparison.equal,
    )


def _at_equal_seconds(comparison: Comparison, found: Findings) -> Estimate | None:
    if comparison.seconds is not None:
        return comparison.seconds.difference
    ours = found.verdict.ours
    measured = ours is not None and ours.per_run("schedule_seconds") > 0
    return comparison.difference if measured else None  # both take as long at the study's budget
