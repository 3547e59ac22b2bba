"""Searching and confirming: a study, its schedulers and an executor, connected by the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from nasgrow.data import prepare
from nasgrow.driver import Driver
from nasgrow.errors import UserError
from nasgrow.executors.base import Executor
from nasgrow.executors.local import LocalExecutor
from nasgrow.executors.worker import Setup
from nasgrow.experiments.confirm import candidates, fresh_seeds
from nasgrow.schedule import schedule_from
from nasgrow.schedulers.base import Scheduler
from nasgrow.schedulers.baselines import BaselineScheduler
from nasgrow.schedulers.fixed import FixedScheduler, confirmations
from nasgrow.schedulers.make import make_schedulers
from nasgrow.study.artifacts import Draw, attacher
from nasgrow.study.baselines import Size, final_size, other_budgets
from nasgrow.study.config import DATA, STUDY, core_count, dump_study, thread_count, worker_count
from nasgrow.study.costs import LiveCosts, prefix_setup
from nasgrow.study.lock import show
from nasgrow.study.opening import OpenStudy, check, opened
from nasgrow.study.seconds import read_steps, write_steps
from nasgrow.study.study import Study
from nasgrow.study.trials import RUNS, SEARCHED, Kind, TrialRecord
from nasgrow.training.device import gpu_count, pick_device
from nasgrow.training.files import to_json, write_text
from nasgrow.training.machine import numerics
from nasgrow.training.pace import device_name, measure_steps

SHOWN_SECONDS = 2.0
"""Time between two updates of what other processes see of a driver."""

ENVELOPE = 2
"""The fixed shapes, beside the final one, that are trained under other budgets: the best ones."""

LOGS = "logs"
"""The folder of workers' logs in a study's folder."""


@dataclass(frozen=True)
class Place:
    """Where trials are trained: the executor, a Ray cluster's address, how many trials at once."""

    executor: Literal["local", "ray"] = "local"
    address: str | None = None
    workers: int | None = None

    def check(self) -> None:
        """Raise ``UserError`` if the options contradict each other."""
        if self.executor == "local" and self.address is not None:
            raise UserError("--address: is a Ray cluster's: give --engine ray too")


@dataclass(frozen=True)
class Observer:
    """What a command shows while a study runs.

    Attributes:
        note: Called with lines about the data.
        begun: Called when the executor is ready, with the study's folder and the number of workers.
        watch: Called after every round of the driver.
        warn: Called with each warning.
        stop: Whether the user wants to stop.
        draw: Draws the curve of a run that has ended.
    """

    note: Callable[[str], None]
    begun: Callable[[Path, int], None]
    watch: Callable[[Driver], None]
    warn: Callable[[str], None]
    stop: Callable[[], bool]
    draw: Draw


def search(study: Study, folder: Path, place: Place, observer: Observer) -> bool:
    """Run a study, baselines first; False if the user stopped it."""
    place.check()
    check(study, folder)
    corpus = prepare(study.config.data, report=observer.note)
    draw = attacher(folder, observer.draw)
    with opened(study, folder, corpus.fingerprint, draw, observer.warn) as found:
        write_text(folder / STUDY, dump_study(study.config))  # its limits may have changed
        write_text(folder / DATA, to_json(corpus.describe(), indent=2) + "\n")
        setup = _setup(found, place)
        device = _device(setup)
        open_study = _timed(found, device, observer.warn)
        study, trials = open_study.study, open_study.trials
        costs = LiveCosts(study, folder, corpus, numerics(device))
        with _executor(open_study, setup, place, observer) as executor:
            return _drive(open_study, make_schedulers(study, trials, costs), executor, observer)


def confirm(
    study: Study, folder: Path, place: Place, observer: Observer, *, top: int, each: str | None, seeds: int
) -> tuple[bool, Sequence[TrialRecord]]:
    """Train the best schedules and fixed shapes again with fresh seeds.

    First the final shape and the best fixed shapes are tuned under other budgets: how much compute a schedule
    saves is read off their losses there.

    Returns:
        False if the user stopped it; and the candidates.
    """
    place.check()
    corpus = prepare(study.config.data, report=observer.note)
    draw = attacher(folder, observer.draw)
    with opened(study, folder, corpus.fingerprint, draw, observer.warn) as found:
        trials = found.trials
        chosen = _candidates(found, top, each)
        if not chosen:
            raise UserError(f"{folder}: no trial has finished, so there is nothing to confirm")
        setup = _setup(found, place)
        open_study = _timed(found, _device(setup), observer.warn)
        study = open_study.study
        rivals = [record for record in chosen if record.kind == "fixed"][:ENVELOPE]
        sizes = [Size(record.label, schedule_from(record.schedule).start) for record in rivals]
        curves = other_budgets(study, [final_size(study), *sizes])
        tuned = BaselineScheduler(study, trials["baseline"], curves, trials["fixed"])
        with _executor(open_study, setup, place, observer) as executor:
            if not _drive(open_study, {"baseline": tuned}, executor, observer):
                return False, chosen
            chosen = _candidates(open_study, top, each)  # with those under other budgets, which are tuned now
            wanted = confirmations([record.label for record in chosen], fresh_seeds(study, seeds))
            scheduler = FixedScheduler(study, trials["confirmation"], wanted)
            whole = _drive(open_study, {"confirmation": scheduler}, executor, observer)
        if whole and not _is_searched(study, trials):
            show(folder, "stopped")
        return whole, chosen


def _is_searched(study: Study, trials: Mapping[Kind, Mapping[int, TrialRecord]]) -> bool:
    """Whether nothing is left to do of the search, which may have been stopped before its end."""
    if not all(trial.is_ended for kind in SEARCHED for trial in trials[kind].values()):
        return False
    return all(scheduler.suggest() is None for scheduler in make_schedulers(study, trials).values())


def _candidates(open_study: OpenStudy, top: int, each: str | None) -> list[TrialRecord]:
    trials = open_study.trials
    return candidates([trial for kind in SEARCHED for trial in trials[kind].values()], top, each)


def _setup(open_study: OpenStudy, place: Place) -> Setup:
    """What the workers of a study need."""
    config = open_study.study.config
    gpus = 0 if config.resources.gpus == 0 else gpu_count()
    # The cores of this machine say nothing of those of a cluster's nodes.
    elsewhere = place.executor == "ray" and place.address not in (None, "local")
    workers = core_count() if elsewhere else worker_count(config, place.workers, gpu_count())
    return Setup(
        runs=str((open_study.folder / RUNS).absolute()),
        data=config.data.model_dump(mode="json"),
        fingerprint=open_study.fingerprint,
        prefixes=prefix_setup(open_study.study, open_study.folder),
        gpus=gpus,
        threads=thread_count(config.resources, workers),
        trackers=config.training.trackers,
    )


def _device(setup: Setup) -> torch.device:
    """The device of a worker, with its threads: cached prefixes and the seconds of a step depend on both."""
    torch.set_num_threads(setup.threads)
    return pick_device() if setup.gpus else torch.device("cpu")


def _timed(open_study: OpenStudy, device: torch.device, warn: Callable[[str], None]) -> OpenStudy:
    """The study with the seconds of its steps, which are measured when it begins."""
    study, folder, here = open_study.study, open_study.folder, device_name(device)
    steps = read_steps(folder)
    if steps is None:
        steps = measure_steps(study.timed_cases, study.variant, device)
        write_steps(folder, steps)
    elif steps.device != here:
        warn(
            f"{study.config.name}: the seconds of its steps were measured on {steps.device}, and are kept; "
            f"this is {here}"
        )
    return replace(open_study, study=study.measured(steps, study.config.name))


def _drive(
    open_study: OpenStudy, schedulers: Mapping[Kind, Scheduler], executor: Executor, observer: Observer
) -> bool:
    """Connect everything, and run."""
    study, folder = open_study.study, open_study.folder
    shown = _Shown(folder, observer.watch)
    driver = Driver(study, schedulers, open_study.trials, executor, open_study.store, shown)
    driver.warn, driver.stop = observer.warn, observer.stop
    whole = driver.run()
    show(folder, "ended" if whole else "stopped")
    return whole


class _Shown:
    """Shows what a driver is doing to other processes as well, every few seconds."""

    def __init__(self, folder: Path, watch: Callable[[Driver], None]) -> None:
        self._folder, self._watch, self._written = folder, watch, 0.0

    def __call__(self, driver: Driver) -> None:
        self._watch(driver)
        if time.monotonic() - self._written > SHOWN_SECONDS:
            show(self._folder, "running", [one.to_json() for one in driver.running.values()])
            self._written = time.monotonic()


def _executor(open_study: OpenStudy, setup: Setup, place: Place, observer: Observer) -> Executor:
    """What trains the trials of a study."""
    config, folder = open_study.study.config, open_study.folder
    executor: Executor
    if place.executor == "local":
        executor = LocalExecutor(setup, worker_count(config, place.workers, gpu_count()), folder / LOGS)
    else:
        from nasgrow.executors.ray import RayExecutor

        workers = place.workers or config.workers
        executor = RayExecutor(setup, config.resources, place.address, workers, observer.warn)
    observer.begun(folder, executor.slots)
    return executor
