"""Samplers and pruners on recorded trainings: what a search finds in how many trials, for how much compute.

A table holds every distinct run of a small space, trained for real (``nasgrow table``). Searches are replayed
on it, so that hundreds cost minutes. Regret is the best loss that a search found minus the best of the table;
searches differ in their seed alone, and intervals are 95% over seeds. Runs share no trunks here: that is
measured by ``search_trunks.py``.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nasgrow.search.config import Pruner, Sampler
from nasgrow.search.replay import Replayed, replay
from nasgrow.search.samplers import recovered
from nasgrow.search.table import Table, read_table

TABLE = Path(__file__).parent / "recorded" / "compound.parquet"
TRIALS = (10, 20, 40, 80)
EXECUTED = (5, 10, 15, 20)
"""Compute, in whole runs, at which pruners are compared."""
CLOSE = 0.005
"""A loss within this share of the best is as good as found."""
SEEDS, PRUNER_SEEDS, GP_SEEDS, GP_TRIALS = 100, 50, 10, 40
"""Searches for each sampler and pruner; the Gaussian process is slow, so it gets fewer and shorter ones."""


Job = tuple[Sampler, Pruner, int]


@cache
def the_table(path: Path) -> Table:
    """The table, read once in each process."""
    return read_table(path)


def search(job: Job, *, path: Path, trials: int, executed: float | None = None) -> Replayed:
    """A search of so many trials, or until it has executed so many runs' compute."""
    sampler, pruner, seed = job
    table = the_table(path)
    flops = None if executed is None else executed * run_flops(table)
    return replay(table, seed, sampler=sampler, pruner=pruner, trials=trials, total_flops=flops, share=False)


def run_flops(table: Table) -> int:
    """The compute of one point."""
    return table.study.budget * len(table.study.config.seeds)


def best_loss(table: Table) -> float:
    return min(table.losses(table.study.config.seeds))


def best_after(found: Replayed, trials: int) -> float:
    """The best loss of the first trials."""
    return min((loss for loss in found.losses[:trials] if loss is not None), default=inf)


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


def rank_correlation(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Spearman's, of values without ties to speak of."""
    ranks = np.array(pairs).argsort(axis=0).argsort(axis=0)
    return float(np.asarray(np.corrcoef(ranks.T))[0, 1])


def print_table(table: Table) -> None:
    """What there is to find, and how early it can be told."""
    losses = np.array(table.losses(table.study.config.seeds))
    close = np.mean(losses <= losses.min() * (1 + CLOSE))
    print(
        f"{len(losses)} points: loss {losses.min():.4f} to {losses.max():.4f}, "
        f"median {np.median(losses):.4f}; "
        f"{close:.1%} of them within {CLOSE:.1%} of the best"
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


def print_samplers(pool: multiprocessing.pool.Pool, path: Path) -> None:
    """Regret at equal trials."""
    print("\nsamplers: regret at equal trials, and the share of searches within 0.5% of the best")
    best = best_loss(the_table(path))
    found: dict[str, list[Replayed]] = {}
    for sampler in (Sampler(kind="random"), Sampler(kind="tpe"), Sampler(kind="gp")):
        slow = sampler.kind == "gp"
        jobs = [(sampler, Pruner(kind="none"), seed) for seed in range(GP_SEEDS if slow else SEEDS)]
        task = partial(search, path=path, trials=GP_TRIALS if slow else TRIALS[-1])
        found[sampler.kind] = pool.map(task, jobs, chunksize=1)
    for trials in TRIALS:
        print(f"{trials} trials")
        own = {
            kind: np.array([best_after(one, trials) - best for one in searches])
            for kind, searches in found.items()
            if trials <= len(searches[0].losses)
        }
        for kind, values in own.items():
            close = np.mean(values <= CLOSE * best)
            against = "" if kind == "random" else f"; of random's {ratio(values, own['random'])}"
            print(f"  {kind:6} ({len(values)} seeds) {interval(values)}, {close:4.0%}{against}")


def print_pruners(pool: multiprocessing.pool.Pool, path: Path) -> None:
    """Regret at equal executed compute, with the default sampler."""
    print(
        f"\npruners: regret at equal executed compute, {PRUNER_SEEDS} seeds; the difference to none, by seed"
    )
    table = the_table(path)
    best, flops = best_loss(table), run_flops(table)
    kinds = [Pruner(kind=kind) for kind in ("none", "median", "halving", "hyperband")]
    task = partial(search, path=path, trials=8 * EXECUTED[-1], executed=EXECUTED[-1])
    found = {
        pruner.kind: pool.map(task, [(Sampler(), pruner, seed) for seed in range(PRUNER_SEEDS)], chunksize=1)
        for pruner in kinds
    }
    for executed in EXECUTED:
        own = {
            kind: np.array([one.best_within(executed * flops) - best for one in searches])
            for kind, searches in found.items()
        }
        print(f"the compute of {executed} runs")
        for kind, values in own.items():
            begun = np.mean([np.sum(np.cumsum(one.executed) <= executed * flops) for one in found[kind]])
            against = "" if kind == "none" else f"; {interval(values - own['none'])}"
            print(f"  {kind:9} {interval(values)}, {begun:.0f} trials{against}")
        first, second = sorted(own, key=lambda kind: float(own[kind].mean()))[:2]
        apart = own[first] - own[second]
        verdict = "beyond" if abs(apart.mean()) > half_width(apart) else "within"
        print(f"  best: {first}; {second} follows by {interval(-apart)}, {verdict} the noise")


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, default=TABLE, help="a table that nasgrow table wrote")
    path = parser.parse_args().table
    print_table(the_table(path))
    with multiprocessing.get_context("spawn").Pool() as pool:
        print_samplers(pool, path)
        print_pruners(pool, path)


if __name__ == "__main__":
    main()
