"""What a search finds in so many trials, and for so much compute: the ways to search, by regret.

Searches of a table (``nasgrow table``) are replayed with runs that share trunks. Regret is the best loss that
a search found minus the best of the table. First each way gets so many ``trials``, as a study file says it;
told are regret, how many trials were trained to their end, and what was executed and charged, in whole
trials' compute. Then each gets so much compute to execute. Searches differ in their seed alone; intervals are
95% over seeds. ``--known`` begins with schedules of the literature, as the spaces of studies do; then a tree
search of a small space has nothing left to chance, and one seed is enough for it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))

from nasgrow.search.config import Pruner
from nasgrow.search.replay import Replayed, replay
from nasgrow.search.samplers import recovered
from nasgrow.search.study import Study
from nasgrow.search.table import Table, read_table
from tests.benchmarks.search_trunks import RECORDED, TABLE, WAYS, point_flops, processes

TABLES = TABLE, RECORDED / "compound.parquet"
COMPARED = [name for name in WAYS if "independent" not in name]
TRIALS = (12, 24, 50, 100)
EXECUTED = (6, 12, 24, 48)
"""Compute, in whole trials, at which ways are compared."""
MOST = 250
"""Trials of any way but a tree that is limited by compute: where most are pruned it would take hours."""
CLOSE = 0.005
"""A loss within this share of the best is as good as found."""
SEEDS = 24
HALF = {"start.hidden": 0.5, "start.mlp": 0.5, "start.heads": 0.5, "start.layers": 0.5}
KNOWN: dict[str, dict[str, dict[str, float]]] = {
    "tabular": {
        "no growth": {},
        "depth x2 at 40%": {"start.layers": 0.5, "at.layers": 0.4},
        "depth x2 at 80%": {"start.layers": 0.5, "at.layers": 0.8},
        "one at a time": {**HALF, "at.hidden": 0.2, "at.mlp": 0.4, "at.heads": 0.6, "at.layers": 0.8},
        "compound at 40%": {**HALF, "at.hidden": 0.4, "at.mlp": 0.4, "at.heads": 0.4, "at.layers": 0.4},
    },
    "compound": {
        "no growth": {"start": 1},
        "compound x2 at 55%": {"start": 0.5, "at.1": 0.55, "at.2": 0.55},
        "compound x2 at 10%": {"start": 0.5, "at.1": 0.1, "at.2": 0.1},
        "staged doubling": {"start": 0.25, "at.1": 0.1, "at.2": 0.4},
    },
}
"""The schedules that the spaces of studies begin with, at times that the tables have."""

Job = tuple[str, str, int, int]
"""A way, whether ``trials`` or ``compute`` limits it, to how many, and the seed."""


@cache
def the_table(path: Path, known: bool) -> Table:
    """The table, read once in each process."""
    table = read_table(path)
    if not known:
        return table
    config = table.study.config
    assert isinstance(config.space, dict)
    space = {**config.space, "known": KNOWN[path.stem]}
    study = Study.resolve(config.model_copy(update={"space": space}), str(path))
    return Table(study, table.rows, table.about)


def search(job: Job, *, path: Path, known: bool) -> Replayed:
    """One search."""
    name, limit, count, seed = job
    table = the_table(path, known)
    sampler, pruner = WAYS[name].settings
    limits: dict[str, Any] = {"trials": count}
    if limit == "compute":
        many = None if sampler.kind == "tree" else MOST
        limits = {"trials": many, "total_flops": float(count * point_flops(table))}
    return replay(table, seed, sampler=sampler, pruner=pruner, **limits)


def mean(values: Sequence[float]) -> str:
    """A mean with its 95% interval; of one value, that alone."""
    sample = np.array(values)
    if len(sample) == 1 or np.isinf(sample).any():
        return f"{sample.mean():.4f}"
    return f"{sample.mean():.4f} ± {1.96 * sample.std(ddof=1) / len(sample) ** 0.5:.4f}"


def rank_correlation(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Spearman's, of values without ties to speak of."""
    ranks: NDArray[np.int64] = np.array(pairs).argsort(axis=0).argsort(axis=0)
    return float(np.asarray(np.corrcoef(ranks.T))[0, 1])


def print_table(table: Table, name: str) -> None:
    """What there is to find, and how early it can be told."""
    losses = np.array(table.losses(table.study.config.seeds))
    close = np.mean(losses <= losses.min() * (1 + CLOSE))
    print(
        f"\n{name}: {len(losses)} points, loss {losses.min():.4f} to {losses.max():.4f}, "
        f"median {np.median(losses):.4f}; {close:.1%} of them within {CLOSE:.1%} of the best"
    )
    for at in (0.25, 0.5, 0.75, 0.95):
        seen, told = [], []
        for row in table.rows:
            pair = next(place.validation for place in row.places if place.fraction == at), row.loss
            if None in pair:
                continue
            seen.append(pair)
            events = [event.at for event in table.study.space.at(row.parameters).schedule.events]
            told += [pair] * recovered(Pruner(), events, at)
        print(
            f"  rank correlation of the loss at {at:.0%} with the last: {rank_correlation(seen):.2f}, "
            f"of the {len(told)} runs that a pruner may judge then: {rank_correlation(told):.2f}"
        )


def best_of(found: Replayed) -> float:
    return min((loss for loss in found.losses if loss is not None), default=inf)


def print_trials(found: dict[Job, Replayed], table: Table, seeds: range) -> None:
    """Regret at equal trials."""
    best, flops = min(table.losses(table.study.config.seeds)), point_flops(table)
    for count in TRIALS:
        print(f"trials: {count}{'regret':>37}{'to the end':>20}{'executed':>10}{'charged':>9}")
        for name in COMPARED:
            own = [found[name, "trials", count, seed] for seed in seeds]
            ended = np.mean([sum(loss is not None for loss in one.losses) for one in own])
            executed, charged = (
                np.mean([sum(spent) for spent in several]) / flops
                for several in ([one.executed for one in own], [one.charged for one in own])
            )
            regret = mean([best_of(one) - best for one in own])
            print(f"  {name:26}{regret:>20}{ended:20.1f}{executed:10.1f}{charged:9.1f}")


def print_compute(found: dict[Job, Replayed], table: Table, seeds: range) -> None:
    """Regret at equal executed compute."""
    best, flops = min(table.losses(table.study.config.seeds)), point_flops(table)
    print(f"{'regret for the compute of':28}" + "".join(f"{count:>18} trials" for count in EXECUTED))
    for name in COMPARED:
        own = [found[name, "compute", EXECUTED[-1], seed] for seed in seeds]
        told = [mean([one.best_within(count * flops) - best for one in own]) for count in EXECUTED]
        print(f"  {name:26}" + "".join(f"{one:>25}" for one in told))


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, nargs="*", default=TABLES, help="what nasgrow table wrote")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="searches of each way")
    parser.add_argument("--known", action="store_true", help="begin with schedules of the literature")
    options = parser.parse_args()
    seeds = range(options.seeds)
    limits = [("trials", count) for count in TRIALS] + [("compute", EXECUTED[-1])]
    jobs = [(name, limit, count, seed) for limit, count in limits for name in COMPARED for seed in seeds]
    with processes() as pool:
        for path in options.table:
            table = the_table(path, options.known)
            print_table(table, path.name)
            task = partial(search, path=path, known=options.known)
            found = dict(zip(jobs, pool.map(task, jobs, chunksize=1), strict=True))
            print_trials(found, table, seeds)
            print_compute(found, table, seeds)


if __name__ == "__main__":
    main()
