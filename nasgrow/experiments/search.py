"""Run a search or a confirmation: open the study, build schedulers and executor, and run the driver."""

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
from nasgrow.experiments.confirm import candidates, count_candidates, fresh_seeds
from nasgrow.schedule import schedule_from
from nasgrow.schedulers.base import Scheduler
from nasgrow.schedulers.baselines import BaselineScheduler
from nasgrow.schedulers.listed import FixedScheduler, confirmations
from nasgrow.schedulers.make import make_schedulers
from nasgrow.study.artifacts import Draw, attacher
from nasgrow.study.baselines import BaselineSize, final_size, other_budgets
from nasgrow.study.config import DATA, STUDY, core_count, dump_study, thread_count, worker_count
from nasgrow.study.costs import LiveCosts, prefix_setup
from nasgrow.study.lock import show
from nasgrow.study.step_prices import read_steps, write_steps
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.study_folder import OpenStudy, check, opened
from nasgrow.study.trials import RUNS, SEARCHED, Kind, TrialRecord
from nasgrow.training.atomic_files import to_json, write_text
from nasgrow.training.device import gpu_count, pick_device
from nasgrow.training.machine import numerics
from nasgrow.training.step_timing import device_name, measure_steps

SHOWN_SECONDS = 2.0
"""Seconds between two updates of the file that shows the driver's state to other processes."""

ENVELOPE = 2
"""How many of the best fixed shapes, besides the final one, are trained under other budgets."""

LOGS = "logs"
"""The folder of workers' logs in a study's folder."""


@dataclass(frozen=True)
class Workplace:
    """Where trials are trained.

    Attributes:
        executor: Processes of this machine, or Ray.
        address: The address of a Ray cluster. If None, Ray is started here.
        workers: The number of trials trained at once. If None, the study's, or else as many as fit.
    """

    executor: Literal["local", "ray"] = "local"
    address: str | None = None
    workers: int | None = None

    def check(self) -> None:
        """Raise ``UserError`` if the options contradict each other."""
        if self.executor == "local" and self.address is not None:
            raise UserError("--address: is only for a Ray cluster: give --engine ray too")


@dataclass(frozen=True)
class Observer:
    """The callbacks of a command while a study runs.

    Attributes:
        note: Called with each line about the data, and about the measurement of steps.
        begun: Called when the executor is ready, with the study's folder and the number of workers.
        watch: Called with the driver after each of its rounds.
        warn: Called with each warning.
        stop: Returns True if the user wants to stop.
        draw: Draws the loss curve of a run that has ended.
    """

    note: Callable[[str], None]
    begun: Callable[[Path, int], None]
    watch: Callable[[Driver], None]
    warn: Callable[[str], None]
    stop: Callable[[], bool]
    draw: Draw


def search(study: ResolvedStudy, folder: Path, place: Workplace, observer: Observer) -> bool:
    """Run or resume the search of a study, baselines first; return False if the user stopped it.

    The data is prepared first, and training steps are timed if the study's folder does not have
    their times.

    Raises:
        UserError: The study, its folder, its data or its storage cannot be used, or workers keep
            dying.
        WorkerError: A worker raised an error that is no mistake of the user.
    """
    place.check()
    check(study, folder)
    corpus = prepare(study.config.data, report=observer.note)
    draw = attacher(folder, observer.draw)
    with opened(study, folder, corpus.fingerprint, draw, observer.warn) as found:
        write_text(folder / STUDY, dump_study(study.config))  # its limits may have changed
        write_text(folder / DATA, to_json(corpus.describe(), indent=2) + "\n")
        setup = _setup(found, place)
        device = _device(setup)
        open_study = _timed(found, device, observer)
        study, trials = open_study.study, open_study.trials
        costs = LiveCosts(study, folder, corpus, numerics(device))
        with _executor(open_study, setup, place, observer) as executor:
            return _drive(open_study, make_schedulers(study, trials, costs), executor, observer)


def confirm(
    study: ResolvedStudy,
    folder: Path,
    place: Workplace,
    observer: Observer,
    *,
    top: int,
    each: str | None,
    seeds: int,
) -> tuple[bool, Sequence[TrialRecord]]:
    """Train the best schedules, fixed shapes and baselines again with fresh seeds.

    Before that, tune the final shape and the best fixed shapes under other budgets. From their losses a
    report reads off how much compute a schedule saves.

    Args:
        study: The study.
        folder: Its folder.
        place: Where trials are trained.
        observer: The callbacks.
        top: How many schedules, and how many fixed shapes; baselines do not count.
        each: If given, the best ``top`` schedules for each value of this searched parameter.
        seeds: How many fresh seeds.

    Returns:
        Whether everything was trained, False if the user stopped it; and the candidates.

    Raises:
        UserError: As for :func:`search`; or no trial has finished; or there is no parameter
            ``each``.
        WorkerError: As for :func:`search`.
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
        open_study = _timed(found, _device(setup), observer)
        study = open_study.study
        rivals = [record for record in chosen if record.kind == "fixed"][:ENVELOPE]
        sizes = [BaselineSize(record.label, schedule_from(record.schedule).start) for record in rivals]
        curves = other_budgets(study, [final_size(study), *sizes])
        tuned = BaselineScheduler(study, trials["baseline"], curves, trials["fixed"])
        later = count_candidates(chosen, curves) * seeds
        with _executor(open_study, setup, place, observer) as executor:
            if not _drive(open_study, {"baseline": tuned}, executor, observer, later):
                return False, chosen
            chosen = _candidates(open_study, top, each)  # now with the tuned baselines under other budgets
            wanted = confirmations([record.label for record in chosen], fresh_seeds(study, seeds))
            scheduler = FixedScheduler(study, trials["confirmation"], wanted)
            whole = _drive(open_study, {"confirmation": scheduler}, executor, observer)
        if whole and not _is_searched(study, trials):
            show(folder, "stopped")
        return whole, chosen


def _is_searched(study: ResolvedStudy, trials: Mapping[Kind, Mapping[int, TrialRecord]]) -> bool:
    """Return whether the search is complete; False if the user stopped it before its end."""
    if not all(trial.is_ended for kind in SEARCHED for trial in trials[kind].values()):
        return False
    return all(scheduler.suggest() is None for scheduler in make_schedulers(study, trials).values())


def _candidates(open_study: OpenStudy, top: int, each: str | None) -> list[TrialRecord]:
    trials = open_study.trials
    return candidates([trial for kind in SEARCHED for trial in trials[kind].values()], top, each)


def _setup(open_study: OpenStudy, place: Workplace) -> Setup:
    """Return the settings that all workers of a study share.

    ``place`` decides only their number of threads.
    """
    config = open_study.study.config
    gpus = 0 if config.resources.gpus == 0 else gpu_count()
    # On a cluster, the number of workers has nothing to do with this machine's cores.
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
    """Return the device of a worker, and set this process to a worker's number of threads.

    Keys of cached prefixes and the measured seconds of a step depend on both.
    """
    torch.set_num_threads(setup.threads)
    return pick_device() if setup.gpus else torch.device("cpu")


def _timed(open_study: OpenStudy, device: torch.device, observer: Observer) -> OpenStudy:
    """Return the study with the seconds of its training steps, and with its budget resolved.

    The seconds come from the study's folder. If it has none, they are measured on ``device`` and
    written there. Seconds of another device are kept, with a warning.

    Raises:
        UserError: The budget is too small or too large.
    """
    study, folder, here = open_study.study, open_study.folder, device_name(device)
    steps = read_steps(folder)
    if steps is None:
        observer.note(f"timing training steps on {here}")
        steps = measure_steps(study.timed_cases, study.variant, device)
        write_steps(folder, steps)
    elif steps.device != here:
        observer.warn(
            f"{study.config.name}: the seconds of its steps were measured on {steps.device}, and are kept; "
            f"this is {here}"
        )
    return replace(open_study, study=study.measured(steps, study.config.name))


def _drive(
    open_study: OpenStudy,
    schedulers: Mapping[Kind, Scheduler],
    executor: Executor,
    observer: Observer,
    later: int | None = None,
) -> bool:
    """Run a driver with these schedulers and this executor; return False if the user stopped it.

    Other processes can read its state from the study's folder. If a confirmation follows, ``later``
    is the number of its trials.
    """
    study, folder = open_study.study, open_study.folder
    shown = _Shown(folder, observer.watch)
    driver = Driver(study, schedulers, open_study.trials, executor, open_study.store, shown)
    driver.warn, driver.stop, driver.later = observer.warn, observer.stop, later
    whole = driver.run()
    show(folder, "ended" if whole else "stopped")
    return whole


class _Shown:
    """A ``watch`` callback that also writes the driver's state for other processes, every few seconds."""

    def __init__(self, folder: Path, watch: Callable[[Driver], None]) -> None:
        self._folder, self._watch, self._written = folder, watch, 0.0

    def __call__(self, driver: Driver) -> None:
        self._watch(driver)
        if time.monotonic() - self._written > SHOWN_SECONDS:
            running = [one.to_json() for one in driver.running.values()]
            show(self._folder, "running", running, driver.planned())
            self._written = time.monotonic()


def _executor(open_study: OpenStudy, setup: Setup, place: Workplace, observer: Observer) -> Executor:
    """Create the executor of a study, local workers or Ray, and call the observer's ``begun``."""
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
