"""Replay: search a table of recorded runs on a simulated cluster, so that hundreds of searches take minutes.

The driver, the schedulers and the space are those of a real search.
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
"""Called with the study, its trials and their costs: makes the scheduler of the search."""


@dataclass(frozen=True)
class Ended:
    """The end of a trial.

    Attributes:
        seconds: Simulated seconds since the start of the search.
        executed: FLOPs that all trials had executed by then.
        loss: Its loss; None if it did not finish.
    """

    seconds: float
    executed: int
    loss: float | None


@dataclass(frozen=True)
class Replayed:
    """The result of a replayed search.

    Attributes:
        slots: The number of trials that the simulated cluster trains at once.
        trials: The trials, by number.
        ended: The end of each trial, in order. Trials that stay paused end with the search.
        seconds: Simulated time from the first trial's start to the last one's end.
        trained: Seconds that slots trained, added up over slots.
        waited: Seconds that slots waited for runs or prefixes of other jobs, added up over slots.
        executed: FLOPs executed.
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
        """The share of their time that the slots trained."""
        return self.trained / (self.slots * self.seconds)

    def best_within(self, executed: float) -> float:
        """Return the best loss of trials that ended within this many executed FLOPs; infinite if none did."""
        found = (end.loss for end in self.ended if end.loss is not None and end.executed <= executed)
        return min(found, default=math.inf)

    def executed_until(self, loss: float) -> float:
        """Return the FLOPs executed until a trial ended with at most this loss; infinite if none did."""
        return next((end.executed for end in self._as_low(loss)), math.inf)

    def time_to(self, loss: float) -> float:
        """Return the simulated seconds until a trial ended with at most this loss; infinite if none did."""
        return next((end.seconds for end in self._as_low(loss)), math.inf)

    def _as_low(self, loss: float) -> list[Ended]:
        return [end for end in self.ended if end.loss is not None and end.loss <= loss]


class _Log(MemoryStore):
    """A trial store that records when trials end on the simulated clock."""

    def __init__(self, executor: SimulatedExecutor) -> None:
        super().__init__()
        self._executor = executor
        self.ended: list[Ended] = []

    def end(self, record: TrialRecord) -> None:
        """Record the end of a trial."""
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
    """Replay a search on a table of recorded runs.

    Return its trials, compute and simulated time. Only the search is replayed, without baselines
    and confirmation. It ends when the scheduler suggests nothing more.

    Args:
        table: The recorded runs. A point or seed that is not in it raises ``KeyError``. If any of
            its times is unknown, a slot executes the study's budget in one second.
        seed: The seed of the search and of the noise of run times.
        sampler: The sampler.
        pruner: The pruner.
        trials: How many schedules to try, as in a study file; None for no limit.
        total_flops: The executed FLOPs after which no trial starts; None for no limit.
        share: Whether runs share prefixes.
        seeds: The training seeds of each trial; by default those of the table's study.
        slots: The number of trials trained at once.
        noise: Each run's recorded time is multiplied by a random log-normal factor. This is the
            standard deviation of the factor's logarithm; 0 replays the recorded times.
        make: Makes the scheduler; by default that of a real search.
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
