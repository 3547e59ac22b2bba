"""The dry executor: it trains nothing, and counts what the jobs of a study would cost.

Charged and executed FLOPs are those of real runs, as far as prefixes are cached at every time of the space
and none is evicted. Losses are not known, and so are made up: schedulers get a number for every evaluation.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from nasgrow.errors import UserError
from nasgrow.executors.base import Job
from nasgrow.executors.simulated import SimulatedCache, SimulatedExecutor
from nasgrow.params import table
from nasgrow.schedule import Stage
from nasgrow.spaces.training import PEAK
from nasgrow.study.costs import Trained, prefix_times
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.table import ForkPoint, RunRow, places
from nasgrow.study.trials import Kind, TrialRecord
from nasgrow.training.run import Run

MOST_STEPS = 1_000_000_000
"""Steps of all runs that are looked at: the key of a prefix hashes the learning rate of every step."""

Elapsed = Callable[[Run], Callable[[int], float]]
"""The seconds that a run takes until so many FLOPs are charged."""


@dataclass(frozen=True)
class Assumed:
    """What the costs of runs depend on besides the study.

    Attributes:
        fingerprint: The data's; empty if it is not prepared, so that no run of it is on disk.
        environment: What the bits of a result depend on besides the run, as a worker will have it.
        elapsed: How long the runs of each kind take, where that is known; else as long as their FLOPs say.
    """

    fingerprint: str
    environment: Mapping[str, Any]
    elapsed: Mapping[Kind, Elapsed]


class DryRuns:
    """The runs of a study's jobs as their cost goes, each resolved once.

    Attributes:
        steps: Training steps of all of them.
        state_bytes: The size on disk of the state at the end of each prefix, by key.
    """

    def __init__(self, study: ResolvedStudy, assumed: Assumed) -> None:
        self._study, self._assumed = study, assumed
        self._times = () if study.config.prefix_cache is None else prefix_times(study.space)
        self._known: dict[tuple[Kind, frozenset[tuple[str, Any]]], list[RunRow]] = {}
        self.steps = 0
        self.state_bytes: dict[str, int] = {}

    def of(self, job: Job) -> list[RunRow]:
        """The runs of a job, without losses."""
        name = job.trial.kind, frozenset(job.parameters.items())
        if name not in self._known:
            vocab, fingerprint = self._study.variant.vocab, self._assumed.fingerprint
            runs = [Run.resolve(config, vocab=vocab, fingerprint=fingerprint) for config in job.runs]
            self._known[name] = [self._row(job.trial.kind, run) for run in runs]
        return self._known[name]

    def _row(self, kind: Kind, run: Run) -> RunRow:
        last = run.stages[-1]
        charged = last.charged(last.end)
        self.steps += last.end
        if self.steps > MOST_STEPS:
            raise UserError(
                f"budget: {self._study.budget:.3g} FLOPs a run are too many to be planned: a plan looks at "
                f"{MOST_STEPS:.0e} steps at most, of all runs"
            )
        times = self._assumed.elapsed.get(kind)
        elapsed = (lambda flops: flops / self._study.budget) if times is None else times(run)
        way = places(run, self._times, {}, elapsed, self._assumed.environment)
        for place in way:
            if place.key is not None and place.key not in self.state_bytes:
                stage = next(stage for stage in run.stages if place.step <= stage.end)
                self.state_bytes[place.key] = state_bytes(run, stage)
        return RunRow(run.identity, {}, "", run.config.seed, 0.0, charged, way, elapsed(charged))


def state_bytes(run: Run, stage: Stage) -> int:
    """The size of a run's state on disk: weights in float32 and the optimizer's moments."""
    muon = run.config.training.optimizer == "muon"
    entries = table(stage.shape, run.variant).values()
    return sum(4 * entry.count * (2 if muon and entry.row.multiplies else 3) for entry in entries)


class MadeUpLosses:
    """Losses that favour no schedule: a trial has a random rank among all, which it keeps.

    If trials of the study were evaluated at the same fraction of the budget, its loss there is that of the
    trial of this rank. Of the final shape the learning rate in the middle is the best, so that it is not
    tuned further, or the highest one, so that it is tuned as far as may be.

    Args:
        study: The study.
        trials: Its search trials so far.
        draw: Ranks differ in it.
        extended: Whether the highest learning rate is the best.
    """

    def __init__(
        self, study: ResolvedStudy, trials: Mapping[int, TrialRecord], draw: int, *, extended: bool
    ) -> None:
        self._name, self._extended = f"{study.config.name} {draw}", extended
        rates = study.tuning.declared[PEAK]
        self._middle = rates[len(rates) // 2]
        self._known: dict[float, list[float]] = {}
        for trial in trials.values():
            final = [] if trial.loss is None else [(1.0, trial.loss)]
            for at, loss in (*trial.evaluations, *final):
                insort(self._known.setdefault(at, []), loss)

    def at(self, job: Job, fraction: float) -> float:
        """The loss of a job at a fraction of the budget; at 1 the final one."""
        if job.trial.kind == "baseline":
            rate = float(job.parameters.get(PEAK, self._middle))
            return -1e9 - math.log(rate) if self._extended else 1e9 + abs(math.log(rate / self._middle))
        rank = Random(f"{self._name} {job.trial}").random()
        known = self._known.get(fraction)
        return 2 - fraction + rank if known is None else known[int(rank * len(known))] + 1e-9 * rank


class DryExecutor(SimulatedExecutor):
    """Counts what jobs would cost.

    Args:
        runs: The runs of jobs.
        trained: What is on disk.
        trials: The study's trials so far.
        losses: The losses that schedulers receive.
        slots: How many jobs are executed at once.
    """

    def __init__(
        self,
        runs: DryRuns,
        trained: Trained,
        trials: Mapping[Kind, Mapping[int, TrialRecord]],
        losses: MadeUpLosses,
        slots: int,
    ) -> None:
        super().__init__(slots, SimulatedCache(trained=trained))
        self._runs, self._losses = runs, losses
        for trial in (trial for kind in trials.values() for trial in kind.values()):
            for identity, executed in trial.runs.items():
                self._executed[identity] += executed
                self._seconds[identity] += trial.seconds * executed / max(1, trial.executed)
            if not trial.is_ended and len(trial.runs) == 1:  # its own state is saved
                self.cache.begun[next(iter(trial.runs))] = trial.charged

    @property
    def states(self) -> dict[str, int]:
        """The bytes of each state that would be cached, by key."""
        return {key: self._runs.state_bytes[key] for key in self.cache.keys}

    def rows(self, job: Job) -> Sequence[RunRow]:
        """The runs of a job with made-up losses."""

        def told(place: ForkPoint) -> ForkPoint:
            loss = None if place.fraction is None else self._losses.at(job, place.fraction)
            return replace(place, validation=loss)

        loss = self._losses.at(job, 1.0)
        return [replace(row, loss=loss, places=tuple(map(told, row.places))) for row in self._runs.of(job)]

    def duration(self, row: RunRow, begin: int, end: int) -> float:
        """The seconds of a part of a run, which may begin where a trial was interrupted."""
        assert row.seconds is not None
        known = [(place.flops, place.elapsed or 0.0) for place in row.places if place.flops]
        flops, seconds = zip((0, 0.0), *known, (row.charged, row.seconds), strict=True)
        return float(np.interp(end, flops, seconds) - np.interp(begin, flops, seconds))
