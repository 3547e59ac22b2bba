"""Samplers and pruners on recorded trainings: what a search finds in how many trials, for how much compute.

``recorded/compound.json`` holds every distinct run of a small compound space, trained for real. Searches are
replayed on it with the product's own space, samplers and pruners, so that hundreds cost minutes. Regret is
the best loss that a search found minus the best of the table; searches differ in their seed alone, and
intervals are 95% over seeds. The table is of one training seed: it tells samplers apart, not schedules.

``--record FOLDER`` trains what is missing in the folder, with one thread on each core, and writes the table.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # for the processes of --record

import numpy as np
import optuna
import yaml
from numpy.typing import NDArray
from optuna.trial import FixedTrial, TrialState

from nasgrow.config import Budget
from nasgrow.schedule import Schedule
from nasgrow.search.config import Pruner, Sampler, StudyConfig, dump_study
from nasgrow.search.samplers import FULL, make_pruner, make_sampler, recovered, trial_seed
from nasgrow.search.spaces import Point
from nasgrow.search.study import Study

TABLE = Path(__file__).parent / "recorded" / "compound.json"
CONFIG = StudyConfig(
    name="compound",
    final={"hidden": 32, "layers": 2, "mlp": 128, "heads": 2, "key": 16, "value": 16},
    budget=Budget(flops=1e11),
    space={
        "kind": "compound",
        "dims": ["hidden", "layers", "mlp", "heads"],
        "start": [1, 0.75, 0.5, 0.25],
        "events": 2,
        "times": {"low": 0.1, "high": 0.7, "step": 0.15},
        "training": {"learning_rate.peak": [3e-3, 6e-3, 1.2e-2, 2.4e-2]},
    },
    objectives=["loss"],
    trials=80,
)

TRIALS = (10, 20, 40, 80)
EXECUTED = (5, 10, 15, 20)
"""Compute, in whole runs, at which pruners are compared."""
CLOSE = 0.005
"""A loss within this share of the best is as good as found."""
SEEDS, PRUNER_SEEDS, GP_SEEDS, GP_TRIALS = 100, 50, 10, 40
"""Searches for each sampler and pruner; the Gaussian process is slow, so it gets fewer and shorter ones."""

Key = tuple[Schedule, tuple[object, ...]]


@dataclass(frozen=True)
class Recorded:
    """A run of the table: its loss, its evaluations (fraction of the budget, loss), its events' fractions."""

    loss: float
    curve: tuple[tuple[float, float], ...]
    events: tuple[float, ...]


@dataclass(frozen=True)
class Search:
    """A replayed search: after each trial, the compute executed so far in whole runs, and the best loss."""

    executed: tuple[float, ...]
    best: tuple[float, ...]

    def after_trials(self, count: int) -> float:
        return self.best[count - 1]

    def within(self, executed: float) -> float:
        """The best loss of the trials that this much compute pays for; infinite if it pays for none."""
        paid = [
            best for spent, best in zip(self.executed, self.best, strict=True) if spent <= executed + 1e-9
        ]
        return paid[-1] if paid else inf


@cache
def the_study() -> Study:
    return Study.resolve(CONFIG, "benchmark")


def key_of(point: Point) -> Key:
    """Equal points are one run."""
    return point.schedule, tuple(point.training.values())


def distinct() -> dict[Key, tuple[dict[str, Any], Point]]:
    """Every distinct run of the space, with the parameters of the first point that gives it."""
    space = the_study().space
    found: dict[Key, tuple[dict[str, Any], Point]] = {}
    for values in itertools.product(*(setting.values for setting in space.settings.values())):
        parameters = dict(zip(space.settings, values, strict=True))
        point = space.sample(FixedTrial(parameters))
        found.setdefault(key_of(point), (parameters, point))
    return found


# Recording.


def train_one(folder: Path, key: Key) -> dict[str, Any]:
    """Train a run, unless it is in the folder already; its record."""
    import torch

    from nasgrow.data import prepare
    from nasgrow.search.outcome import Setting, evaluations, resolve
    from nasgrow.training.folder import open_folder
    from nasgrow.training.loop import train
    from nasgrow.training.records import CHECKPOINTS

    parameters, point = distinct()[key]
    corpus = prepare(CONFIG.data)
    setting = Setting(folder, corpus, torch.device("cpu"), lambda progress: None, print, lambda: False)
    run, place = resolve(the_study().run(point.schedule, point.training, CONFIG.seeds[0]), setting)
    with open_folder(place, run, corpus.tokenizer, setting.device) as before:
        result = before or train(run, corpus, place, device=setting.device)
    shutil.rmtree(place / CHECKPOINTS, ignore_errors=True)
    if result.validation is None:
        raise ValueError(f"{parameters}: diverged, for which the table has no place")
    curve = dict(evaluations(place))
    assert len(curve) == CONFIG.training.evaluations, parameters
    return {
        "parameters": parameters,
        "loss": round(result.validation, 5),
        "events": [event.at for event in run.schedule.events],
        "curve": [round(loss, 4) for loss in curve.values()],
    }


def record(folder: Path) -> None:
    """Train the whole table and write it."""
    import torch

    from nasgrow.data import prepare
    from nasgrow.training.machine import describe_machine

    corpus = prepare(CONFIG.data)  # once, before processes want it at the same time
    keys, runs = list(distinct()), []
    with multiprocessing.get_context("spawn").Pool() as pool:
        for run in pool.imap(partial(train_one, folder), keys):
            runs.append(run)
            print(f"{len(runs)}/{len(keys)} {run['parameters']}: {run['loss']:.4f}", flush=True)
    header = {
        "made by": "search_samplers.py --record: each distinct run of the study, trained as a worker does",
        "date": datetime.date.today().isoformat(),
        "fingerprint": corpus.fingerprint,
        "machine": {**describe_machine(torch.device("cpu")), "optuna": optuna.__version__},
        "study": yaml.safe_load(dump_study(CONFIG)),
        "fractions": [index / CONFIG.training.evaluations for index in range(CONFIG.training.evaluations)],
    }
    lines = ",\n".join(json.dumps(run) for run in runs)
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(f'{json.dumps(header, indent=1)[:-2]},\n "runs": [\n{lines}\n]}}\n', encoding="utf-8")


# Replaying.


@cache
def table() -> Mapping[Key, Recorded]:
    """The recorded runs."""
    data = json.loads(TABLE.read_text(encoding="utf-8"))
    assert data["study"]["space"] == CONFIG.space, "the table is of another space: record it again"
    space = the_study().space
    return {
        key_of(space.sample(FixedTrial(run["parameters"]))): Recorded(
            run["loss"],
            tuple(zip(data["fractions"], run["curve"], strict=True)),
            tuple(run["events"]),
        )
        for run in data["runs"]
    }


def replay(job: tuple[Sampler, Pruner, int], *, trials: int, executed: float = inf) -> Search:
    """A search of so many trials, or until it has executed so many runs' compute.

    Equal points share a run, and what of it was trained is not paid again.
    """
    sampler, pruner, seed = job
    space = the_study().space
    study = optuna.create_study(study_name=f"replay {seed}", pruner=make_pruner(pruner))
    trained: dict[Key, float] = {}
    best, bests, spent = inf, [], []
    for number in range(trials):
        study.sampler = make_sampler(sampler, trial_seed(study.study_name, number))
        trial = study.ask()
        key = key_of(space.sample(trial))
        run, reached = table()[key], 1.0
        for fraction, loss in run.curve:
            trial.report(loss, round(FULL * fraction))
            asked = fraction >= pruner.after and trial.should_prune()
            if asked and recovered(pruner, run.events, fraction):
                reached = fraction
                break
        if reached == 1.0:
            study.tell(trial, run.loss)
            best = min(best, run.loss)
        else:
            study.tell(trial, state=TrialState.PRUNED)
        trained[key] = max(trained.get(key, 0.0), reached)
        bests.append(best)
        spent.append(sum(trained.values()))
        if spent[-1] >= executed:
            break
    return Search(tuple(spent), tuple(bests))


def half_width(values: NDArray[np.float64]) -> float:
    """Half the width of the 95% interval of a mean."""
    return float(1.96 * values.std(ddof=1) / len(values) ** 0.5)


def interval(values: NDArray[np.float64]) -> str:
    return f"{values.mean():.4f} ± {half_width(values):.4f}"


def ratio(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> str:
    """The ratio of means, with its 95% interval from 4,000 bootstrap samples of each."""
    rng = np.random.default_rng(0)
    a, b = (rng.choice(values, (4000, len(values))).mean(axis=1) for values in (ours, theirs))
    low, high = np.quantile(a / b, (0.025, 0.975))
    return f"{ours.mean() / theirs.mean():.2f} ({low:.2f} to {high:.2f})"


def regrets(losses: Iterator[float]) -> NDArray[np.float64]:
    return np.array(list(losses)) - best_loss()


def best_loss() -> float:
    return min(run.loss for run in table().values())


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's, of values without ties to speak of."""
    ranks = np.array(pairs).argsort(axis=0).argsort(axis=0)
    return float(np.asarray(np.corrcoef(ranks.T))[0, 1])


def print_table() -> None:
    """What there is to find, and how early it can be told."""
    runs = list(table().values())
    losses = np.array([run.loss for run in runs])
    close = np.mean(losses <= best_loss() * (1 + CLOSE))
    print(
        f"{len(runs)} runs: loss {losses.min():.4f} to {losses.max():.4f}, median {np.median(losses):.4f}; "
        f"{close:.1%} of them within {CLOSE:.1%} of the best"
    )
    for at in (0.25, 0.5, 0.75, 0.95):
        seen = [(dict(run.curve)[at], run.loss) for run in runs]
        told = [pair for pair, run in zip(seen, runs, strict=True) if recovered(Pruner(), run.events, at)]
        every, settled = (rank_correlation(pairs) for pairs in (seen, told))
        print(
            f"  rank correlation of the loss at {at:.0%} with the last: {every:.2f}, "
            f"of the {len(told)} runs that a pruner may judge then: {settled:.2f}"
        )


def print_samplers(pool: multiprocessing.pool.Pool) -> None:
    """Regret at equal trials."""
    print("\nsamplers: regret at equal trials, and the share of searches within 0.5% of the best")
    found: dict[str, list[Search]] = {}
    for sampler in (Sampler(kind="random"), Sampler(kind="tpe"), Sampler(kind="gp")):
        slow = sampler.kind == "gp"
        jobs = [(sampler, Pruner(), seed) for seed in range(GP_SEEDS if slow else SEEDS)]
        task = partial(replay, trials=GP_TRIALS if slow else TRIALS[-1])
        found[sampler.kind] = pool.map(task, jobs, chunksize=1)
    for trials in TRIALS:
        print(f"{trials} trials")
        fair = regrets(search.after_trials(trials) for search in found["random"])
        for name, searches in found.items():
            if trials > len(searches[0].best):
                continue
            own = regrets(search.after_trials(trials) for search in searches)
            close = np.mean(own <= CLOSE * best_loss())
            against = "" if name == "random" else f"; of random's {ratio(own, fair)}"
            print(f"  {name:6} ({len(own)} seeds) {interval(own)}, {close:4.0%}{against}")


def print_pruners(pool: multiprocessing.pool.Pool) -> None:
    """Regret at equal executed compute, with the default sampler."""
    print(
        f"\npruners: regret at equal executed compute, {PRUNER_SEEDS} seeds; the difference to none, by seed"
    )
    kinds = [Pruner(kind=kind) for kind in ("none", "median", "halving", "hyperband")]
    task = partial(replay, trials=8 * EXECUTED[-1], executed=EXECUTED[-1])
    found = {
        pruner.kind: pool.map(task, [(Sampler(), pruner, seed) for seed in range(PRUNER_SEEDS)], chunksize=1)
        for pruner in kinds
    }
    for executed in EXECUTED:
        own = {kind: regrets(s.within(executed) for s in searches) for kind, searches in found.items()}
        print(f"the compute of {executed} runs")
        for kind, values in own.items():
            begun = np.mean([sum(spent <= executed for spent in s.executed) for s in found[kind]])
            against = "" if kind == "none" else f"; {interval(values - own['none'])}"
            print(f"  {kind:9} {interval(values)}, {begun:.0f} trials{against}")
        best, second = sorted(own, key=lambda kind: float(own[kind].mean()))[:2]
        apart = own[best] - own[second]
        verdict = "beyond" if abs(apart.mean()) > half_width(apart) else "within"
        print(f"  best: {best}; {second} follows by {interval(-apart)}, {verdict} the noise")


def main() -> None:
    """Replay and print, or record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="train the table, runs in this folder")
    folder = parser.parse_args().record
    if folder is not None:
        record(folder)
        return
    print_table()
    with multiprocessing.get_context("spawn").Pool(
        initializer=optuna.logging.set_verbosity, initargs=(optuna.logging.ERROR,)
    ) as pool:
        print_samplers(pool)
        print_pruners(pool)


if __name__ == "__main__":
    main()
