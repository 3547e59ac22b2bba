"""The executor of a table: it looks up what happened when every run of a space was recorded."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nasgrow.executors.base import Job
from nasgrow.executors.simulated import SimulatedCache, SimulatedExecutor
from nasgrow.study.table import RunRow, RunTable


class TableExecutor(SimulatedExecutor):
    """Answers jobs from a table.

    A run takes the seconds that it took when it was recorded. If the table has none, a slot executes the
    study's budget in one second.

    Args:
        table: The recorded runs; every point of a job must be among them.
        slots: How many jobs it executes at once.
        share: Whether runs share prefixes.
        noise: The standard deviation of the logarithm of the factor by which a run takes longer.
        seed: Of that noise.
    """

    def __init__(
        self, table: RunTable, slots: int = 1, *, share: bool = True, noise: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__(slots, SimulatedCache(share), noise, seed)
        self._table = table

    def rows(self, job: Job) -> Sequence[RunRow]:
        """The recorded runs of a job."""
        return self._table.runs(self._table.study.space.at(job.parameters), [run.seed for run in job.runs])

    def duration(self, row: RunRow, begin: int, end: int) -> float:
        """Recorded seconds, or the share of the budget."""
        return row.time(begin, end) if self._table.timed else (end - begin) / self._table.study.budget

    def costs(self, seeds: Sequence[int]) -> TableCosts:
        """What trials with these seeds would cost on this cluster."""
        return TableCosts(self._table, self.cache, tuple(seeds))


@dataclass(frozen=True)
class TableCosts:
    """What the points of a table would still cost, given what a simulated cluster has trained."""

    table: RunTable
    cache: SimulatedCache
    seeds: tuple[int, ...]
    _rows: dict[Hashable, list[RunRow]] = field(default_factory=dict)

    def flops(self, parameters: Mapping[str, Any]) -> float:
        """FLOPs that a trial with these parameters would execute; 0 if its result is known."""
        point = tuple(parameters.items())
        if point not in self._rows:  # decoding takes most of the time, and schedulers ask again and again
            self._rows[point] = self.table.runs(self.table.study.space.at(parameters), self.seeds)
        return sum(row.charged - self.cache.done(row) for row in self._rows[point])
