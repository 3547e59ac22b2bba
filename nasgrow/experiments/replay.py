"""Replay: searches of recorded runs on a simulated cluster, so that hundreds of searches take minutes.

All that decides is the live search's own: the driver, the scheduler, the space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nasgrow.driver import Driver
from nasgrow.executors.simulated import SimulatedExecutor
from nasgrow.executors.table import TableExecutor
from nasgrow.schedulers.base import Costs, Scheduler, Trials
from nasgrow.schedulers.make import make_scheduler
from nasgrow.study.config import Pruner, Sampler
from nasgrow.study.memory_store import MemoryStore
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.table import RunTable
from nasgrow.study.trials import TrialRecord

MakeScheduler = Callable[[ResolvedStudy, Trials, Costs], Scheduler]
"""Makes the scheduler of a study's search."""


@dataclass(frozen=True)
class Ended:
    """The end of a trial: when, after how many FLOPs of all trials, and its loss if it finished."""

    seconds: float
    executed: int
    loss: float | None


@dataclass(frozen=True)
class Replayed:
    """A search, and what the cluster did.

    Attributes:
        slots: Of the cluster.
        trials: By number.
        ended: The end of each trial, in order; those that were paused to the last end with the search.
        seconds: Simulated time from the first trial's start to the last one's end.
        trained: Seconds in which slots trained, added up.
        waited: Seconds in which they waited for what others trained, added up.
        executed: FLOPs.
    """

    slots: int
    trials: tuple[TrialRecord, ...]
    ended: tuple[Ended, ...]
    seconds: float
    trained: float
    waited: float
    executed: int

    @property
    def charged(self) -> int:
        """FLOPs billed to all trials."""
        return sum(trial.charged for trial in self.trials)

    @property
    def utilisation(self) -> float:
        """The share of all slots' time in which they trained."""
        return self.trained / (self.slots * self.seconds)

    def best_within(self, executed: float) -> float:
        """The best loss of the trials that had ended when this many FLOPs were executed; infinite if none."""
        found = (end.loss for end in self.ended if end.loss is not None and end.executed <= executed)
        return min(found, default=math.inf)

    def executed_until(self, loss: float) -> float:
        """The FLOPs executed until a trial with a loss as low as this ended; infinite if none did."""
        return next((end.executed for end in self._as_low(loss)), math.inf)

    def time_to(self, loss: float) -> float:
        """When a trial with a loss as low as this ended; infinite if none did."""
        return next((end.seconds for end in self._as_low(loss)), math.inf)

    def _as_low(self, loss: float) -> list[Ended]:
        return [end for end in self.ended if end.loss is not None and end.loss <= loss]


class _Log(MemoryStore):
    """Writes down when trials end on a simulated clock."""

    def __init__(self, executor: SimulatedExecutor) -> None:
        super().__init__()
        self._executor = executor
        self.ended: list[Ended] = []

    def end(self, record: TrialRecord) -> None:
        """A trial has ended."""
        self.ended.append(Ended(self._executor.now, self._executor.executed, record.loss))


def replay(
    table: RunTable,
    seed: int,
    *,
    sampler: Sampler,
    pruner: Pruner,
    trials: int | None = None,
    total_flops: float | None = None,
    share: bool = True,
    seeds: Sequence[int] | None = None,
    slots: int = 1,
    noise: float = 0.0,
    make: MakeScheduler = make_scheduler,
) -> Replayed:
    """Search a table.

    Args:
        table: The recorded runs; every point that is suggested must be among them.
        seed: Searches differ in it.
        sampler: How the next point is chosen.
        pruner: When a trial is paused.
        trials: How many to try.
        total_flops: No further trial starts once this much was executed.
        share: Whether runs share prefixes.
        seeds: The training seeds of each trial; those of the table's study by default.
        slots: How many trials are trained at once.
        noise: The standard deviation of the logarithm of the factor by which a run takes longer.
        make: Makes the scheduler; by default the one that a live search has.
    """
    changes = {
        "name": f"replay-{seed}",
        "sampler": sampler,
        "pruner": pruner,
        "trials": trials,
        "total_flops": total_flops,
        "hours": None,
        "seeds": list(seeds or table.study.config.seeds),
    }
    study = replace(table.study, config=table.study.config.model_copy(update=changes))
    executor = TableExecutor(table, slots, share=share, noise=noise, seed=seed)
    records: dict[int, TrialRecord] = {}
    scheduler = make(study, records, executor.costs(study.config.seeds))
    log = _Log(executor)
    Driver(study, {"search": scheduler}, {"search": records}, executor, log).run()
    return Replayed(
        slots=slots,
        trials=tuple(records.values()),
        ended=tuple(log.ended),
        seconds=executor.now,
        trained=executor.trained,
        waited=executor.waited,
        executed=executor.executed,
    )
