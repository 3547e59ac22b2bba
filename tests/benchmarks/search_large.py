"""What ways to search find in a space far too large for a table: its losses are made up, by a formula.

The space is ``per-dimension.yaml``. Each search has a hidden schedule of its own: what a run's loss lacks at
a fraction of the budget is how far the course of its sizes was from that schedule's until there, in each
dimension with a weight of its own, and a little chance. Ways have the same compute; told are the distances of
what they found from the hidden schedule's loss, and the processor time of a search. Such losses are smoother
than real ones: it is for telling two versions of one way apart, not for the choice of a way.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Hashable, Sequence
from functools import partial
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))

from nasgrow.experiments.replay import replay
from nasgrow.schedule import in_words
from nasgrow.shape import Shape
from nasgrow.spaces import Point
from nasgrow.study.costs import prefix_times
from nasgrow.study.table import RunRow, RunTable, places
from nasgrow.training.run import Run
from tests.benchmarks.search_ways import WAYS, processes
from tests.study.made import large_study

SEARCHES = 16
COMPUTE = (5, 10, 20, 40)
"""Whole trials whose compute a search may execute."""
CHANCE = 0.01
"""The standard deviation of losses among equal courses."""


class MadeUp(RunTable):
    """A table whose rows come to be when they are asked for.

    Args:
        seed: Which schedule is hidden.
        changes: Fields of the study.
    """

    def __init__(self, seed: int, **changes: Any) -> None:
        super().__init__(large_study(f"large-{seed}", **changes), (), {})
        self._seed, space = seed, self.study.space
        self._parts = np.diff([0.0, *space.times, 1.0])
        rng = np.random.default_rng(seed)
        best = {name: setting.draw(1, rng)[0] for name, setting in space.settings.items()}
        self._best = self._course(space.at(best))
        self._weights = rng.exponential(size=len(self._best)) / 10
        self._made: dict[Hashable, RunRow] = {}

    def runs(self, point: Point, seeds: Sequence[int]) -> list[RunRow]:
        """The runs of a point: one, as all its seeds are equal."""
        if point.key not in self._made:
            run = Run.resolve(
                self.study.run(point.schedule, point.training, 0), vocab=256, fingerprint="large"
            )
            away = np.square(self._course(point) - self._best) * self._weights[:, None]
            spent = np.cumsum([0.0, *self._parts])
            lacking = np.concatenate([[0.0], away.sum(axis=0).cumsum()])
            chance = np.random.default_rng([self._seed, int(run.identity, 16)]).normal(0, CHANCE)
            losses = {
                now: 2.0 + float(np.interp(now, spent, lacking)) + 2 * exp(-5 * now) + chance * now
                for now in (index / 20 for index in range(21))
            }
            last, way = run.stages[-1], places(run, prefix_times(self.study.space), losses)
            loss, words = losses[1.0] - 2 * exp(-5), in_words(run.schedule)
            self._made[point.key] = RunRow(run.identity, {}, words, 0, loss, last.charged(last.end), way)
        return [self._made[point.key]] * len(seeds)

    def _course(self, point: Point) -> NDArray[np.float64]:
        """The logarithms of the sizes in each part of the budget, times the root of its length."""
        begun = [0.0, *(event.at for event in point.schedule.events)]
        middles = np.cumsum(self._parts) - self._parts / 2
        shapes = [point.schedule.shapes[int(np.searchsorted(begun, at, "right")) - 1] for at in middles]
        sizes: NDArray[np.float64] = np.log2(np.array([_sizes(shape) for shape in shapes])).T
        return np.asarray(sizes * np.sqrt(self._parts))


def _sizes(shape: Shape) -> list[float]:
    """Width, depth, and the mean sizes of a layer."""
    layers = shape.layers
    heads = [group for layer in layers for group in layer.groups]
    return [
        shape.hidden,
        len(layers),
        sum(layer.mlp for layer in layers) / len(layers),
        sum(group.count for group in heads) / len(layers),
        sum(group.count * group.key for group in heads) / len(layers),
        sum(group.count * group.value for group in heads) / len(layers),
    ]


def search(job: tuple[str, int], *, compute: int) -> tuple[list[float], int, float]:
    """The distances at each compute, the trials and the seconds of a processor of one search."""
    name, seed = job
    table, start = MadeUp(seed), time.process_time()
    found = replay(table, seed, **WAYS[name].settings, total_flops=float(compute * table.study.budget))
    seconds = time.process_time() - start
    told = [found.best_within(runs * table.study.budget) - 2.0 for runs in COMPUTE if runs <= compute]
    return told, len(found.trials), seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", nargs="+", default=["tree", "TPE, ASHA"], choices=WAYS)
    parser.add_argument("--searches", type=int, default=SEARCHES)
    parser.add_argument("--compute", type=int, default=COMPUTE[-1], help="in whole trials")
    given = parser.parse_args()
    jobs = [(name, seed) for name in given.way for seed in range(given.searches)]
    with processes() as pool:
        found = dict(zip(jobs, pool.map(partial(search, compute=given.compute), jobs, 1), strict=True))
    for name in given.way:
        told, trials, seconds = zip(*(found[name, seed] for seed in range(given.searches)), strict=True)
        table = np.array(told)
        error = 1.96 * table.std(axis=0, ddof=1) / np.sqrt(len(table))
        parts = [
            f"{mean:.4f} ± {about:.4f} at {runs}"
            for mean, about, runs in zip(table.mean(axis=0), error, COMPUTE, strict=False)
        ]
        print(
            f"{name}: {', '.join(parts)} whole trials' compute; {np.mean(trials):.0f} trials, "
            f"{np.mean(seconds):.1f} s of a processor for a search",
            flush=True,
        )


if __name__ == "__main__":
    main()
