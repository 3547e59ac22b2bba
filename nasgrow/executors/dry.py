"""The dry executor: count what the jobs of a study would cost, without training.

Charged and executed FLOPs are those of real runs, provided that the prefix cache keeps a state at every time
of the space and evicts none. Losses are unknown, so they are made up: schedulers get a number for every
evaluation.
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
"""The most training steps, over all runs, that a plan may have.

A plan hashes the learning rate of every step into the keys of prefixes, which takes time.
"""

Elapsed = Callable[[Run], Callable[[int], float]]
"""Returns, for a run, the function from charged FLOPs to the seconds that the run takes until then."""


@dataclass(frozen=True)
class Assumed:
    """The assumptions that the costs of runs depend on, besides the study.

    Attributes:
        fingerprint: The fingerprint of the data; empty if the data is not prepared, so that no run on it can
            be on disk.
        environment: The hardware and software that the exact bits of a result depend on, as a worker will
            have them.
        elapsed: How long runs of each kind take. For a kind that is left out, the study's budget takes one
            second.
    """

    fingerprint: str
    environment: Mapping[str, Any]
    elapsed: Mapping[Kind, Elapsed]


class DryRuns:
    """Resolves the runs of a study's jobs, and keeps them as rows with their costs.

    Attributes:
        steps: The training steps of all runs so far.
        state_bytes: The size on disk of the state at the end of each prefix, by the prefix's key.
    """

    def __init__(self, study: ResolvedStudy, assumed: Assumed) -> None:
        self._study, self._assumed = study, assumed
        self._times = () if study.config.prefix_cache is None else prefix_times(study.space)
        self._known: dict[tuple[Kind, frozenset[tuple[str, Any]]], list[RunRow]] = {}
        self.steps = 0
        self.state_bytes: dict[str, int] = {}

    def of(self, job: Job) -> list[RunRow]:
        """Return the runs of a job with their costs, one row for each run; losses are 0.

        Rows are kept by the trial's kind and parameters, because simulations submit equal jobs many
        times and resolving a run is slow.

        Raises:
            UserError: All runs so far have more than :data:`MOST_STEPS` steps, or a run is
                impossible.
        """
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
                f"budget: {self._study.budget:.3g} FLOPs per run are too many for a plan: it simulates "
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
    """Return the bytes of a run's state in a stage: weights and optimizer moments in float32."""
    muon = run.config.training.optimizer == "muon"
    entries = table(stage.shape, run.variant).values()
    return sum(4 * entry.count * (2 if muon and entry.row.multiplies else 3) for entry in entries)


class MadeUpLosses:
    """Made-up losses that favour no schedule.

    Each trial gets a random rank, which it keeps at all evaluations. Its loss at a fraction of the
    budget is the loss of that rank among the study's real trials that were evaluated there. If
    there are none, it is made up from the rank and the fraction.

    Baselines get losses that decide how far the learning rate is tuned. Either the middle rate is the best,
    so that tuning stops at once, or the highest is, so that tuning goes on to its limit.

    Args:
        study: The study.
        trials: Its search trials so far.
        draw: The random seed of the ranks.
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
        """Return the loss of a job at a fraction of the budget; at 1 it is the final loss."""
        if job.trial.kind == "baseline":
            rate = float(job.parameters.get(PEAK, self._middle))
            return -1e9 - math.log(rate) if self._extended else 1e9 + abs(math.log(rate / self._middle))
        rank = Random(f"{self._name} {job.trial}").random()
        known = self._known.get(fraction)
        return 2 - fraction + rank if known is None else known[int(rank * len(known))] + 1e-9 * rank


class DryExecutor(SimulatedExecutor):
    """Counts what jobs would cost, without training them.

    Args:
        runs: The runs of jobs, with their costs.
        trained: The finished runs and cached prefixes on disk.
        trials: The study's trials so far.
        losses: The made-up losses that schedulers receive.
        slots: How many jobs are simulated at once.
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
            if not trial.is_ended and len(trial.runs) == 1:  # its state is saved, besides cached prefixes
                self.cache.begun[next(iter(trial.runs))] = trial.charged

    @property
    def states(self) -> dict[str, int]:
        """The size in bytes of each state that the simulated jobs have cached, by key."""
        return {key: self._runs.state_bytes[key] for key in self.cache.keys}

    def rows(self, job: Job) -> Sequence[RunRow]:
        """Return the runs of a job with made-up losses."""

        def told(place: ForkPoint) -> ForkPoint:
            loss = None if place.fraction is None else self._losses.at(job, place.fraction)
            return replace(place, validation=loss)

        loss = self._losses.at(job, 1.0)
        return [replace(row, loss=loss, places=tuple(map(told, row.places))) for row in self._runs.of(job)]

    def duration(self, row: RunRow, begin: int, end: int) -> float:
        """Return the seconds of a part of a run, given by FLOPs; interpolated between known places.

        A part may begin anywhere, because a trial may have been interrupted there.
        """
        assert row.seconds is not None
        known = [(place.flops, place.elapsed or 0.0) for place in row.places if place.flops]
        flops, seconds = zip((0, 0.0), *known, (row.charged, row.seconds), strict=True)
        return float(np.interp(end, flops, seconds) - np.interp(begin, flops, seconds))
