"""What a search costs besides training: claiming a trial, sampling, reports, attributes, telling, figures.

A worker's own code pursues trials of ``per-dimension.yaml`` on SQLite, with one thread; only the training is
replaced: its evaluations come at once. Between measurements the study is filled with finished trials; for a
tree, two branches of three were left at the first rung, with their state in the store. Printed is the median
time of a trial (aim: below 50 ms beside 2,000 finished ones, and below 2% of a trial that trains a minute),
and the medians of what it goes to. It is measured for each sampler in turn, or for those that ``--sampler``
names; TPE without a pruner, with halving, which is its default, and with the median.

Where the machine is not always as fast, each line tells how fast it was: the time of a fixed piece of work,
measured between the trials.
"""

from __future__ import annotations

import os

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # as a worker for each core has it; NumPy reads it when it loads

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from nasgrow.config import Budget, RunConfig
from nasgrow.data import Corpus, prepare
from nasgrow.report.curve import draw_curve
from nasgrow.search import objective
from nasgrow.search.artifacts import attacher
from nasgrow.search.config import Pruner
from nasgrow.search.ledger import Claim, Ledger
from nasgrow.search.life import begin
from nasgrow.search.outcome import Asks, Claimant, Setting, finish, resolve
from nasgrow.search.prices import Prices
from nasgrow.search.samplers import make_pruner
from nasgrow.search.storage import beating, open_storage, storage_url
from nasgrow.search.study import Study
from nasgrow.search.tree.leaves import RUNGS
from nasgrow.search.trunks import open_prices, open_trunks
from nasgrow.training.loop import Stopped
from nasgrow.training.records import METRICS, Result
from nasgrow.training.run import Run
from tests.search.studies import endless_study

FINISHED = (0, 500, 1000, 2000)
MEASURED = 21
"""Trials at each number of finished ones."""
MINUTE = 60.0
LIVED: dict[str, Any] = {
    "start": {"hidden": 8, "layers": 1, "mlp": 32, "heads": 1, "key": 16, "value": 16},
    "events": [{"at": 0.5, "grow": [{"expand": "hidden", "to": 16}]}],
}
"""The schedule whose records stand for those of every trial."""

DRAWING = "figure and files"

spent: dict[str, float] = defaultdict(float)
used: dict[str, float] = defaultdict(float)
"""Seconds by the clock, and of a processor, which tell more where other work runs."""


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose time is added up under a name."""

    def call(*args: Any, **kwargs: Any) -> Any:
        start, cpu = time.perf_counter(), time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - start
            used[name] += time.process_time() - cpu

    return call


class Silent:
    """Takes down nothing, and lets every run go on."""

    def report(self, fraction: float, loss: float) -> None: ...

    def judge(self, fraction: float, loss: float) -> None: ...


def train_once(folder: Path, corpus: Corpus) -> Path:
    """The records of a short, real run."""
    setting = Setting(folder, corpus, torch.device("cpu"), lambda progress: None, print, lambda: False)
    run, place = resolve(RunConfig(schedule=LIVED, budget=Budget(flops=5e9)), setting)
    finish(run, place, setting, Silent(), Claimant("benchmark"))
    return place / METRICS


def without_training(records: Path) -> Callable[..., tuple[Result, int]]:
    """In place of a run's training: its folder, its evaluations, its result."""

    def at_once(run: Run, folder: Path, setting: Setting, asks: Asks, who: Claimant) -> tuple[Result, int]:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(records, folder / METRICS)
        evaluations, last = run.config.training.evaluations, random.uniform(2.0, 2.5)
        for index in range(evaluations):
            with suppress(Stopped):  # a trial that is given up would cost less
                asks.judge(index / evaluations, last + 3.0 - 3.0 * index / evaluations)
        return Result("finished", last, 1000, 4_096_000, run.budget, run.budget, MINUTE, 0), run.budget

    return at_once


def filling(
    study: Study, like: FrozenTrial, count: int, keep: Callable[[dict[str, Any]], None]
) -> Iterator[FrozenTrial]:
    """Finished trials at random points, otherwise like a given one; or branches, most of them left.

    Args:
        study: The study.
        like: The given one.
        count: How many.
        keep: Keeps the state of a branch that was left.
    """
    scratch = optuna.create_study(sampler=RandomSampler(seed=count))
    for number in range(count):
        trial = scratch.ask()
        study.space.sample(trial)
        (executed,) = like.user_attrs["runs"].values()
        left = study.config.sampler.kind == "tree" and number % 3 > 0
        if left:
            keep(trial.params)
        told = {step: loss for step, loss in like.intermediate_values.items() if not left or step <= RUNGS[0]}
        yield optuna.create_trial(
            params=trial.params,
            distributions=trial.distributions,
            state=TrialState.PRUNED if left else TrialState.COMPLETE,
            value=None if left else random.uniform(2.0, 2.5),
            intermediate_values={step: loss + random.uniform(-0.1, 0.1) for step, loss in told.items()},
            user_attrs={
                **like.user_attrs,
                "status": "pruned" if left else "finished",
                "runs": {f"{count}/{number}": executed},
            },
        )


@dataclass(frozen=True)
class Worker:
    """What a worker has for all its trials."""

    setting: Setting
    attach: objective.Attach
    prices: Prices

    def pursue(self, ledger: Ledger) -> Claim:
        """Do one trial."""
        claim = ledger.claim(prices=self.prices)
        assert claim is not None
        with beating(ledger.storage, claim.trial._trial_id):
            objective.pursue(claim, ledger, self.setting, self.attach)
        return claim


def fixed_work() -> float:
    """The seconds of a piece of work that is always the same: some of Python's own, some of NumPy's."""
    start, made = time.perf_counter(), {str(index): index for index in range(3000)}
    for _ in range(3):
        sorted(json.loads(json.dumps(made)))
    matrix = np.random.default_rng(0).random((150, 150))
    for _ in range(3):
        np.linalg.cholesky(matrix @ matrix.T + np.eye(150))
    return time.perf_counter() - start


def measure(ledger: Ledger, worker: Worker) -> dict[str, float]:
    """The median seconds of each part of a trial, of the whole without figures and with, and the mean."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(MEASURED):
        spent.clear()
        used.clear()
        start, cpu = time.perf_counter(), time.process_time()
        assert worker.pursue(ledger).kind == "search"
        spent["whole"] = time.perf_counter() - start
        spent["book"] = spent["whole"] - spent[DRAWING]
        spent["processor"] = time.process_time() - cpu - used[DRAWING]
        spent["machine"] = fixed_work()
        for name, value in spent.items():
            seconds[name].append(value)
    found = {name: statistics.median(values) for name, values in seconds.items()}
    return {**found, "mean": statistics.fmean(seconds["book"])}


def show(what: str, seconds: dict[str, float]) -> None:
    whole, book, mean, cpu, machine = (
        seconds.pop(name) for name in ("whole", "book", "mean", "processor", "machine")
    )
    del seconds[DRAWING]
    parts = ", ".join(f"{name} {value * 1e3:.1f}" for name, value in seconds.items())
    rest = book - sum(seconds.values())
    print(
        f"{what}: {book * 1e3:.0f} ms ({parts}, rest {rest * 1e3:.1f}), mean {mean * 1e3:.0f} ms, "
        f"{cpu * 1e3:.0f} ms of a processor; with figure and files {whole * 1e3:.0f} ms, "
        f"{whole / MINUTE:.2%} of a minute; fixed work {machine * 1e3:.1f} ms"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sampler", nargs="+", default=["tpe", "tree"], help="as a study file names them")
    for owner, name, what in (
        (Ledger, "claim", "claim"),
        (Trial, "report", "reports"),
        (Trial, "should_prune", "pruner"),
        (objective, "note", "attributes"),
        (Ledger, "tell", "tell"),
        (objective, "_drop_checkpoints", "checkpoints"),
    ):
        setattr(owner, name, timed(what, getattr(owner, name)))
    for kind in parser.parse_args().sampler:
        measure_all(kind)


def measure_all(kind: str) -> None:
    """Measure one sampler beside more and more trials."""
    random.seed(0)
    study = endless_study(f"overhead-{kind}", sampler={"kind": kind})
    corpus = prepare(study.config.data)
    vars(study.space)["sample"] = timed("sample", study.space.sample)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "study"
        trained = train_once(Path(scratch), corpus)
        trunks = open_trunks(study, folder)
        ledger = begin(study, folder, corpus.fingerprint)
        setting = Setting(
            folder, corpus, torch.device("cpu"), lambda progress: None, print, lambda: False, trunks
        )
        vars(objective)["finish"] = without_training(trained)
        prices = open_prices(study, folder, corpus, setting.device, trunks)
        worker = Worker(setting, timed(DRAWING, attacher(folder, draw_curve)), prices)
        # Baselines and known schedules come first; then one more, which is the pattern of those filled in.
        while (claim := worker.pursue(ledger)).kind == "baseline" or "known" in claim.trial.user_attrs:
            pass
        trials = ledger.optuna_study("search")
        like, before = trials.get_trials()[-1], 0

        def keep(parameters: dict[str, Any]) -> None:
            (way,) = prices._ways_of(study.space.at(parameters))
            assert trunks is not None
            passed = [key for key, charged in way.states if charged <= (RUNGS[0] / 100 + 0.01) * study.budget]
            trunks.store.path(passed[-1]).mkdir(parents=True, exist_ok=True)

        for finished in FINISHED:
            trials.add_trials(filling(study, like, finished - before, keep))
            before = finished
            worker.pursue(ledger)  # reads what was filled in
            show(f"{kind}, {finished} finished trials", measure(ledger, worker))
        fresh = Ledger(study, folder, open_storage(storage_url(study.config, folder)))
        start = time.perf_counter()
        worker.pursue(fresh)
        print(f"the first trial of a worker that begins now: {(time.perf_counter() - start) * 1e3:.0f} ms")
        if kind != "tree":  # which has rungs of its own
            for pruner in ("halving", "median"):
                fresh.optuna_study("search").pruner = make_pruner(Pruner(kind=pruner))
                show(f"{kind} with the pruner {pruner}", measure(fresh, worker))


if __name__ == "__main__":
    main()
