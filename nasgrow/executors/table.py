"""The table executor: replay jobs from a table in which every run of a space is recorded."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nasgrow.executors.base import Job
from nasgrow.executors.simulated import SimulatedCache, SimulatedExecutor
from nasgrow.study.table import RunRow, RunTable


class TableExecutor(SimulatedExecutor):
    """Replays jobs from a table of recorded runs.

    A run takes the seconds that it took when it was recorded. If the table has no seconds, a slot executes
    the study's budget in one second.

    Args:
        table: The recorded runs. A job whose runs are not in it raises ``KeyError``.
        slots: How many jobs it executes at once.
        share: Whether runs share prefixes.
        noise: Each run's recorded time is multiplied by a random log-normal factor. This is the
            standard deviation of the factor's logarithm; 0 replays the recorded times.
        seed: The random seed of that noise.
    """

    def __init__(
        self, table: RunTable, slots: int = 1, *, share: bool = True, noise: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__(slots, SimulatedCache(share), noise, seed)
        self._table = table

    def rows(self, job: Job) -> Sequence[RunRow]:
        """Return the recorded runs of a job."""
        return self._table.runs(self._table.study.space.at(job.parameters), [run.seed for run in job.runs])

    def duration(self, row: RunRow, begin: int, end: int) -> float:
        """Return the recorded seconds of a part of a run; without any, its share of the budget."""
        return row.time(begin, end) if self._table.timed else (end - begin) / self._table.study.budget

    def costs(self, seeds: Sequence[int]) -> TableCosts:
        """Return the costs of trials with these seeds on this cluster."""
        return TableCosts(self._table, self.cache, tuple(seeds))


@dataclass(frozen=True)
class TableCosts:
    """Predicts what the points of a table would cost, given what the simulated cluster has trained."""

    table: RunTable
    cache: SimulatedCache
    seeds: tuple[int, ...]
    _rows: dict[Hashable, list[RunRow]] = field(default_factory=dict)

    def flops(self, parameters: Mapping[str, Any]) -> float:
        """Return the FLOPs that a trial with these parameters would execute; 0 if its result is known."""
        point = tuple(parameters.items())
        if point not in self._rows:  # decoding takes most of the time, and schedulers ask repeatedly
            self._rows[point] = self.table.runs(self.table.study.space.at(parameters), self.seeds)
        return sum(row.charged - self.cache.done(row) for row in self._rows[point])
