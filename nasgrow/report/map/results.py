"""The results of a map: of each cell, the best schedule against its final shape and the best fixed shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nasgrow.experiments.map import GrowthMap
from nasgrow.report.budgets import EqualLoss, Rung
from nasgrow.report.load import Records
from nasgrow.report.statistics import BySeed, Estimate
from nasgrow.report.verdict import Outcome


@dataclass(frozen=True)
class Rival:
    """The best schedule of a cell against one fixed shape.

    Attributes:
        shape: The fixed shape.
        loss: Its mean loss at the study's budget.
        outcome: Whether growth beats it at equal compute, at the 95% level. ``open`` if there is no
            interval, as before confirmation.
        difference: The schedule's loss minus the rival's.
        at_equal_seconds: The difference at equal seconds; None if step times were not measured, or
            if the rival was not trained with budgets that take as long.
        seconds: The schedule's seconds divided by the rival's; None if unknown or equal within 2%.
        rungs: Its losses at the study's budget and at each other budget that the study trained.
        saved: The budget at which the rival has the schedule's loss; None with one budget only.
        unconfirmed: For the best fixed shape, the number of others that may be better, but are not
            confirmed.
    """

    shape: str
    loss: float
    outcome: Outcome
    difference: Estimate
    at_equal_seconds: Estimate | None
    seconds: float | None
    rungs: tuple[Rung, ...]
    saved: EqualLoss | None = None
    unconfirmed: int = 0


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
        study: The study that it answers, as the text of a study file with every field.
        top: How many schedules, and how many fixed shapes, are confirmed.
        seeds: The least number of fresh seeds that any of the models compared has: the schedule,
            its rivals, and the final shape at each other budget. It is 0 as long as one has none.
        texts: The fingerprints of the data of its runs.
        confirmed: Whether fresh seeds gave a verdict: against the final shape by test losses, or
            that every schedule diverged.
        diverged: Whether every confirmed schedule diverged; then growth has lost.
        schedule: The best schedule in words; None if none has finished, or all confirmed ones diverged.
        loss: The mean loss of that schedule.
        losses: Its losses by seed and segment of the text.
        final: The schedule against the final shape from scratch; None without a result of both.
        fixed: The schedule against the best fixed shape searched, which may be the final one; None
            without a result of both.
        weaknesses: The weaknesses of its verdict, a sentence each.
        spent: What it cost.
    """

    name: str
    study: str
    top: int
    seeds: int
    texts: tuple[str, ...]
    confirmed: bool
    diverged: bool
    schedule: str | None
    loss: float | None
    losses: BySeed | None
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
        """Whether growth beats its final shape from scratch at equal compute, as ``Rival.outcome``.

        It is ``lost`` if every confirmed schedule diverged, and ``open`` without a result.
        """
        return self._outcome(self.final)

    @property
    def beats(self) -> Outcome:
        """Whether growth beats the best fixed shape at equal compute, like :attr:`saves`."""
        return self._outcome(self.fixed)

    def _outcome(self, rival: Rival | None) -> Outcome:
        if self.diverged:
            return "lost"
        return "open" if rival is None else rival.outcome


@dataclass(frozen=True)
class MapRecords:
    """The results of a map.

    Attributes:
        name: The map's name.
        map: Its definition.
        cells: The results of cells whose studies have started, the cheapest first.
        records: The records of the cells whose results come from their studies' folders, by name.
            The other results come from the earlier report.
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

        A cell that is not confirmed may lack rivals, so a comparison would flatter growth.
        """
        name = self.map.grid[row][column].name
        return next((one for one in self.confirmed if one.name == name), None)
