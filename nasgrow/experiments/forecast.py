"""Forecasts: estimate the cost of a study before it runs, or of the rest of one that has begun.

The driver runs the study with an executor that trains nothing. Two things are unknown in advance, so they are
simulated several times: the points that a learning sampler will choose (drawn at random), and the trials that
ASHA will pause (by random losses). Two more are simulated at their limits: how far the learning rate of the
final shape is tuned, and how much a tree spends on trials that it pauses.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nasgrow.data import prepared
from nasgrow.driver import Driver
from nasgrow.errors import UserError
from nasgrow.executors.dry import Assumed, DryExecutor, DryRuns, Elapsed, MadeUpLosses, state_bytes
from nasgrow.flops import parameter_count
from nasgrow.schedule import Schedule
from nasgrow.schedulers.make import make_schedulers
from nasgrow.shape import Shape
from nasgrow.spaces.grid import points
from nasgrow.strict import with_prefix
from nasgrow.study.config import Pruner, Sampler
from nasgrow.study.costs import Trained
from nasgrow.study.memory_store import MemoryStore
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.study_folder import check_unchanged, trials_by_kind
from nasgrow.study.trials import RUNS, SEARCHED, Kind, TrialRecord, read_trials
from nasgrow.training.checkpoint import KEPT
from nasgrow.training.machine import numerics
from nasgrow.training.records import read_run
from nasgrow.training.run import Run
from nasgrow.training.step_seconds import StepSeconds
from nasgrow.training.step_timing import measure_steps, saved_bytes

DRAWS = 10
"""How often a study is simulated if anything in it is random."""

MAX_SIMULATED_TRIALS, MAX_SIMULATED_STEPS = 1_000, 100_000_000
"""The number of simulated trials, and of steps of their runs, after which no further simulation starts."""

MOST_TRIALS = 5_000
"""The most search trials of a simulation: more would take minutes, or might never end."""

Trials = Mapping[Kind, Mapping[int, TrialRecord]]


@dataclass(frozen=True)
class Work:
    """The cost of the trials of a kind.

    Attributes:
        trials: How many trials have ended.
        runs: How many runs they have, one for each seed.
        charged: FLOPs billed.
        executed: FLOPs that machines spend.
        seconds: The time that one worker takes for all of it; None if unknown.
    """

    trials: int = 0
    runs: int = 0
    charged: int = 0
    executed: int = 0
    seconds: float | None = 0.0

    @staticmethod
    def of(trials: Mapping[int, TrialRecord]) -> Work:
        """Return the cost of these trials so far."""
        every = trials.values()
        return Work(
            trials=sum(trial.is_ended for trial in every),
            runs=sum(len(trial.runs) for trial in every),
            charged=sum(trial.charged for trial in every),
            executed=sum(trial.executed for trial in every),
            seconds=sum(trial.seconds for trial in every),
        )

    def __add__(self, other: Work) -> Work:
        return self._by_field(operator.add, other)

    def __sub__(self, other: Work) -> Work:
        return self._by_field(operator.sub, other)

    def _by_field(self, combine: Callable[[Any, Any], Any], other: Work) -> Work:
        pairs = zip(astuple(self), astuple(other), strict=True)
        combined: list[Any] = [None if None in pair else combine(*pair) for pair in pairs]
        return Work(*combined)


@dataclass(frozen=True)
class Course:
    """The simulated rest of a study.

    Attributes:
        work: The remaining cost of each kind of trial.
        states: The size in bytes of each state that will be cached, by key.
    """

    work: Mapping[Kind, Work]
    states: Mapping[str, int]

    @property
    def total(self) -> Work:
        """The remaining cost of all kinds together."""
        return sum((self.work[kind] for kind in SEARCHED), Work())


@dataclass(frozen=True)
class Forecast:
    """The forecast of a study's cost.

    Attributes:
        study: The study.
        done: The cost of each kind of trial so far.
        draws: How many random draws were simulated; one if nothing is random.
        courses: The simulated ways in which the rest may go; a draw may have several.
        recorded: The kinds whose time is extrapolated from the study's own trials.
    """

    study: ResolvedStudy
    done: Mapping[Kind, Work]
    draws: int
    courses: Sequence[Course]
    recorded: Sequence[Kind]

    def between(self, value: Callable[[Course], float | None]) -> tuple[float, float] | None:
        """Return the least and the greatest value over all courses; None if it is unknown for one.

        Args:
            value: Called with each course; returns the value, or None if unknown.
        """
        values = [found for found in map(value, self.courses) if found is not None]
        return (min(values), max(values)) if len(values) == len(self.courses) else None


def are_points_known(study: ResolvedStudy) -> bool:
    """Return whether the points of a search do not depend on its results.

    The points of a partly tried grid depend on them, because its cheapest points come first.
    """
    config = study.config
    if config.sampler.kind == "grid":
        return config.trials is None or config.trials >= len(points(study.space))
    return config.sampler.kind == "random"


@dataclass(frozen=True)
class Room:
    """The memory and the disk space that a study needs, in bytes.

    Attributes:
        parameters: The number, not the bytes, of the parameters of the largest shape.
        state: The weights, gradients and optimizer moments of this shape in memory.
        saved: The activations that its forward pass saves in memory for the backward pass; None if
            not measured.
        checkpoints: The most that checkpoints take on disk.
        cached: The current size of the prefix cache on disk.
    """

    parameters: int
    state: int
    saved: int | None
    checkpoints: int
    cached: int


def plan_study(
    study: ResolvedStudy, folder: Path, *, workers: int, device: torch.device, timed: bool
) -> tuple[Forecast, Room]:
    """Forecast what a study will cost in compute and time, and what memory and disk it needs.

    If the study has begun, the forecast covers what is left. No trial is trained, and nothing is
    downloaded or written.

    Args:
        study: The study.
        folder: Its folder, which need not exist yet.
        workers: The number of trials trained at once.
        device: The device that they train on.
        timed: Whether to measure activation memory on ``device``, and to time training steps if
            ``study`` does not have their seconds. Without it the forecast has no times, except of
            kinds with recorded trials. A budget in seconds is converted to FLOPs by timed steps in
            any case.

    Raises:
        UserError: The study began with other settings, or it cannot be simulated.
    """
    check_unchanged(study, folder)
    trials = trials_by_kind(read_trials(folder))
    config = study.config
    if study.steps is None and (timed or config.budget.seconds is not None):
        study = study.measured(measure_steps(study.timed_cases, study.variant, device), config.name)
    trained = Trained(study, folder)
    found = forecast(
        study,
        trials,
        trained,
        fingerprint=_fingerprint(study, folder, trials, trained),
        environment=numerics(device),
        steps=study.steps if timed else None,
        workers=workers,
    )
    largest = _run_of(study, study.space.largest)
    state = state_bytes(largest, largest.stages[0])
    parameters = parameter_count(study.space.largest, study.variant)
    kept = len(study.config.seeds) * len(SEARCHED) + workers
    return found, Room(
        parameters=parameters,
        state=state + 4 * parameters,
        saved=saved_bytes(study.space.largest, study.variant, config.training, device) if timed else None,
        checkpoints=kept * KEPT * state,
        cached=0 if trained.cache is None else trained.cache.size(),
    )


def _fingerprint(study: ResolvedStudy, folder: Path, trials: Trials, trained: Trained) -> str:
    """Return the fingerprint of the study's data, or "" if the forecast has no use for it.

    The forecast needs it to find finished runs and cached prefixes, whose keys contain it. It is
    read from the first recorded run. A study without runs takes it from the prepared data, unless
    the prefix cache is empty or disabled. It is also "" if the data is not prepared: then nothing
    on disk can depend on it.
    """
    for kind in trials.values():
        for identity in (identity for trial in kind.values() for identity in trial.runs):
            return read_run(folder / RUNS / identity).fingerprint
    if trained.cache is None or trained.cache.empty:
        return ""
    corpus = prepared(study.config.data)
    return "" if corpus is None else corpus.fingerprint


def _run_of(study: ResolvedStudy, shape: Shape) -> Run:
    """Return the run of a fixed shape."""
    config = study.run(Schedule(shape), {}, study.config.seeds[0])
    return Run.resolve(config, vocab=study.variant.vocab, fingerprint="")


def forecast(
    study: ResolvedStudy,
    trials: Trials,
    trained: Trained,
    *,
    fingerprint: str,
    environment: Mapping[str, Any],
    steps: StepSeconds | None,
    workers: int,
) -> Forecast:
    """Forecast the cost of a study by simulating what is left of it, with made-up losses.

    If the cost depends on chance or on losses, the forecast has several courses.

    Args:
        study: The study.
        trials: Its trials so far, of all kinds.
        trained: The finished runs and cached prefixes on disk.
        fingerprint: The fingerprint of the data; empty if no run or cached prefix on disk can have
            it.
        environment: The hardware and software that the exact bits of a result depend on, as a
            worker will have them.
        steps: The seconds of steps, for kinds without recorded trials; the others keep the pace of
            their trials. With None, fixed shapes without trials take the pace of the search's
            trials. Any other kind without trials then has no times.
        workers: How many trials are trained at once.

    Raises:
        UserError: The study's only limit is ``hours``, and neither ``steps`` nor the search's
            trials tell how long training takes; or it has too many trials or steps to simulate.
    """
    config = study.config
    done = {kind: Work.of(trials[kind]) for kind in SEARCHED}
    elapsed = _elapsed(done, steps)
    if "search" not in elapsed and not (config.trials or config.total_flops or config.sampler.kind == "grid"):
        raise UserError(
            f"{config.name}: hours is its only limit, so the number of trials depends on the time of a step: "
            "leave --no-time out"
        )
    left = (config.trials or 0) - len(trials["search"])
    if left > MOST_TRIALS:
        raise UserError(f"{config.name}: trials: a plan simulates at most {MOST_TRIALS:,}, not {left:,}")

    known = are_points_known(study)
    runs = DryRuns(study, Assumed(fingerprint, environment, elapsed))
    courses: list[Course] = []
    draws = simulated = 0
    wanted = 1 if known and config.pruner.kind == "none" else DRAWS
    while draws < wanted and (
        not draws or (simulated < MAX_SIMULATED_TRIALS and runs.steps < MAX_SIMULATED_STEPS)
    ):
        form = study if known else _at_random(study, trials["search"], draws)
        for extended in (False, True) if study.tuning.parameters(study.tuning.own) else (False,):
            copies = deepcopy({kind: dict(trials[kind]) for kind in SEARCHED})
            losses = MadeUpLosses(study, trials["search"], draws, extended=extended)
            executor = DryExecutor(runs, trained, copies, losses, workers)
            with_prefix(config.name, lambda: _simulate(form, copies, executor))  # noqa: B023 - called at once
            work = {kind: Work.of(copies[kind]) - done[kind] for kind in SEARCHED}
            for kind in SEARCHED:
                if kind not in elapsed:
                    work[kind] = replace(work[kind], seconds=None)
            courses.append(Course(work, executor.states))
            if config.sampler.kind == "tree":
                courses.append(_most_of_a_tree(study, courses[-1], done["search"]))
            simulated += courses[-1].total.trials
        draws += 1
    recorded = [kind for kind in SEARCHED if done[kind].executed and done[kind].seconds]
    return Forecast(study, done, draws, courses, recorded)


def _elapsed(done: Mapping[Kind, Work], steps: StepSeconds | None) -> dict[Kind, Elapsed]:
    """Return how long runs of each kind take: as the study's trials so far, else by measured steps.

    Without either, fixed shapes take as long as schedules, and other kinds are left out.
    """
    found: dict[Kind, Elapsed] = {}
    for kind, work in done.items():
        if work.seconds and work.executed:
            found[kind] = _at_pace(work.seconds / work.executed)
        elif steps is not None:
            found[kind] = steps.elapsed
    if "search" in found:
        found.setdefault("fixed", found["search"])
    return found


def _at_pace(pace: float) -> Elapsed:
    """Return the times of runs at a constant number of seconds per FLOP."""
    return lambda run: lambda flops: pace * flops


def _at_random(study: ResolvedStudy, trials: Mapping[int, TrialRecord], draw: int) -> ResolvedStudy:
    """Return the study with a random sampler, whose seed depends on ``draw``.

    For a tree there is no pruner, and its paused and pruned trials so far do not count as trials.
    """
    config = study.config
    changes: dict[str, Any] = {"sampler": Sampler(kind="random"), "name": f"{config.name}-{draw}"}
    if config.sampler.kind == "tree" and config.trials is not None:
        paused = sum(trial.status in ("paused", "pruned") for trial in trials.values())
        changes |= {"trials": config.trials + paused, "pruner": Pruner(kind="none")}
    return replace(study, config=config.model_copy(update=changes))


def _simulate(
    study: ResolvedStudy, trials: Mapping[Kind, dict[int, TrialRecord]], executor: DryExecutor
) -> None:
    """Run the driver on a study without training; the simulated trials are added to ``trials``.

    Raises:
        UserError: The limits of the study allow more than :data:`MOST_TRIALS` trials.
    """
    before = len(trials["search"])

    def check(driver: Driver) -> None:
        if len(driver.trials["search"]) - before > MOST_TRIALS:
            raise UserError(
                f"its limits allow more than {MOST_TRIALS:,} trials, the most that a plan simulates"
            )

    schedulers = make_schedulers(study, trials)
    Driver(study, schedulers, trials, executor, MemoryStore(trials), watch=check).run()


def _most_of_a_tree(study: ResolvedStudy, course: Course, done: Work) -> Course:
    """Return a course with the most that a tree may execute.

    A tree ends at the latest when it has executed as much as its number of complete trials would,
    whatever it paused. The search of fixed shapes grows with it. Without a number of trials the
    course stays as it is.
    """
    config, work = study.config, course.work["search"]
    if config.trials is None:
        return course
    limit = min(config.trials * len(config.seeds) * study.budget, config.total_flops or float("inf"))
    executed = max(work.executed, int(limit) - done.executed)
    seconds = None if work.seconds is None else work.seconds * executed / max(1, work.executed)
    search = replace(work, executed=executed, seconds=seconds)
    fixed, least = course.work["fixed"], int(config.baselines.compute * executed)
    if least > fixed.executed > 0:
        longer = None if fixed.seconds is None else fixed.seconds * least / fixed.executed
        fixed = replace(fixed, executed=least, seconds=longer)
    return Course({**course.work, "search": search, "fixed": fixed}, course.states)
