"""What ways to search find for how much executed compute, and in how many trials.

Searches of recorded tables (``nasgrow table``) are replayed, each way with the same seeds. First,
independent TPE gets 100 trials, and the best that it finds is the aim. The others get the compute of 50 whole
trials, in at most 200 trials. Printed for each way: how many times less it executed until it had found a
schedule as good, against all that independent TPE executed, and against what that had executed when it found
its best (a seed without a match counts as 0 times); the compute until a loss within 0.5% of the table's best
was found; and what was executed of what was charged.

Then regret, the best loss that a search found minus the best of the table, for so many trials and for so much
compute. ``--known`` starts with schedules of the literature, as the spaces of studies do. Compute is counted
in whole trials; values are medians or means over seeds, with 95% intervals.

``docs/search-prefixes.png`` is the figure of ``--table tests/benchmarks/recorded/tabular.parquet --trials
--way "random, independent" TPE "TPE, ASHA" tree --to FIGURE``.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing.pool
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nasgrow.experiments.replay import Replayed, replay
from nasgrow.strict import parse
from nasgrow.study.config import Pruner, Sampler
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.table import RunTable, read_table

RECORDED = Path(__file__).parent / "recorded"
TABLES = [RECORDED / f"{name}.parquet" for name in ("tabular", "compound", "slots")]
"""The settings of the tree were chosen on the first two."""
SEEDS = 24
TRIALS = 100
"""What independent TPE gets."""
MOST, COMPUTE = 200, 50
"""What the others get: trials, and whole trials' compute; the first reached ends them."""
COUNTS, COMPUTES = (12, 24, 50, 100), (6, 12, 24, 48)
"""Trials, and compute in whole trials, at which regret is compared."""
CLOSE = 0.005
"""A loss within this share of the best is as good as found."""


@dataclass(frozen=True)
class Way:
    """A way to search: a sampler and a pruner as a study file names them, and whether runs share prefixes."""

    sampler: str
    pruner: str
    share: bool

    @property
    def settings(self) -> dict[str, Any]:
        """What a replay needs to know."""
        sampler = parse(Sampler, {"kind": self.sampler}, "sampler")
        pruner = parse(Pruner, {"kind": self.pruner}, "pruner")
        return {"sampler": sampler, "pruner": pruner, "share": self.share}


AIM = "TPE, independent"
WAYS = {
    AIM: Way("tpe", "none", share=False),
    "random, independent": Way("random", "none", share=False),
    "random": Way("random", "none", share=True),
    "TPE": Way("tpe", "none", share=True),
    "random, ASHA": Way("random", "asha", share=True),
    "TPE, ASHA": Way("tpe", "asha", share=True),
    "tree": Way("tree", "none", share=True),
}

HALF = {"start.hidden": 0.5, "start.mlp": 0.5, "start.heads": 0.5, "start.layers": 0.5}
KNOWN: dict[str, dict[str, dict[str, Any]]] = {
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
    "slots": {
        "no growth": {"start.layers": 1},
        "depth x2 at 45%": {"start.layers": 0.5, "slot1.grow": "none", "close.at": 0.45},
        "depth x4 at 75%": {"start.layers": 0.25, "slot1.grow": "none", "close.at": 0.75},
    },
}
"""The schedules that the spaces of studies start with, at times that the tables have."""

Job = tuple[str, str, int, int]
"""A way, whether ``aim``, ``trials`` or ``compute`` limits it, to how many, and the seed."""


@cache
def the_table(path: Path, known: bool) -> RunTable:
    """The table, read once in each process."""
    table = read_table(path)
    if not known:
        return table
    config = table.study.config
    assert isinstance(config.space, dict)
    space = {**config.space, "known": KNOWN[path.stem]}
    study = ResolvedStudy.resolve(config.model_copy(update={"space": space}), str(path))
    return RunTable(study, table.rows, table.about)


def processes() -> multiprocessing.pool.Pool:
    """A process for each core, each with one thread: several would wait for each other."""
    os.environ["OMP_NUM_THREADS"] = "1"
    return multiprocessing.get_context("spawn").Pool()


def trial_flops(table: RunTable) -> int:
    """The compute of a whole trial."""
    return table.study.budget * len(table.study.config.seeds)


def search(job: Job, *, path: Path, known: bool) -> Replayed:
    """One search."""
    name, limit, count, seed = job
    table = the_table(path, known)
    limits: dict[str, Any] = {"trials": count}
    if limit == "compute" and name != AIM:
        limits = {"trials": MOST, "total_flops": float(count * trial_flops(table))}
    return replay(table, seed, **WAYS[name].settings, **limits)


def best_of(found: Replayed) -> float:
    return found.best_within(math.inf)


def median(values: Sequence[float]) -> str:
    """A median, and its 95% interval from 4,000 bootstrap samples."""
    sample = np.array(values)
    drawn = np.median(np.random.default_rng(0).choice(sample, (4000, len(sample))), axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975), method="nearest")  # some may be infinite
    return f"{np.median(sample):.2f} ({low:.2f} to {high:.2f})"


def mean(values: Sequence[float]) -> str:
    """A mean with its 95% interval; of one value, that alone."""
    sample = np.array(values)
    if len(sample) == 1 or np.isinf(sample).any():
        return f"{sample.mean():.4f}"
    return f"{sample.mean():.4f} ± {1.96 * sample.std(ddof=1) / len(sample) ** 0.5:.4f}"


def times_less(aim: Sequence[Replayed], found: Sequence[Replayed], *, until: bool) -> list[float]:
    """By seed: what independent TPE executed (until it found its best), over what a way did for a match."""
    return [
        (theirs.executed_until(best_of(theirs)) if until else theirs.executed)
        / ours.executed_until(best_of(theirs))
        for theirs, ours in zip(aim, found, strict=True)
    ]


def print_savings(found: dict[str, list[Replayed]], table: RunTable) -> None:
    """How much less compute each way needs than independent TPE."""
    aim, whole = found[AIM], trial_flops(table)
    lowest = min(table.losses(table.study.config.seeds))
    print(
        f"{AIM}, {TRIALS} trials: {median([one.executed / whole for one in aim])} whole trials' compute "
        f"executed (equal points are trained once), its best after "
        f"{median([one.executed_until(best_of(one)) / whole for one in aim])}; "
        f"regret {mean([best_of(one) - lowest for one in aim])}"
    )
    print(f"{'':22}{'times less than all of it':>27}{'than until its best':>22}  matched", end="")
    print(f"{'until within 0.5%':>24}  executed / charged")
    for name, searches in found.items():
        of_all, of_best = (times_less(aim, searches, until=until) for until in (False, True))
        matched = np.mean(np.array(of_all) > 0)
        near = [one.executed_until(lowest * (1 + CLOSE)) / whole for one in searches]
        share = fmean(one.executed / one.charged for one in searches)
        print(f"{name:22}{median(of_all):>27}{median(of_best):>22}  {matched:7.0%}", end="")
        print(f"{median(near):>24}  {share:18.2f}")


def print_regret(
    found: dict[Job, Replayed], names: Sequence[str], table: RunTable, seeds: range, counts: Sequence[int]
) -> None:
    """Regret at equal trials, and at equal executed compute."""
    lowest, whole = min(table.losses(table.study.config.seeds)), trial_flops(table)
    for count in counts:
        print(f"{f'regret in {count} trials':22}{'':>20}{'finished':>10}{'executed':>10}{'charged':>9}")
        for name in names:
            own = [found[name, "trials", count, seed] for seed in seeds]
            finished = fmean(sum(end.loss is not None for end in one.ended) for one in own)
            executed, charged = fmean(one.executed for one in own), fmean(one.charged for one in own)
            print(f"  {name:20}{mean([best_of(one) - lowest for one in own]):>20}{finished:10.1f}", end="")
            print(f"{executed / whole:10.1f}{charged / whole:9.1f}")
    print(f"{'regret for compute of':22}" + "".join(f"{count:>13} trials" for count in COMPUTES))
    for name in names:
        own = [found[name, "compute", COMPUTE, seed] for seed in seeds]
        told = [mean([one.best_within(count * whole) - lowest for one in own]) for count in COMPUTES]
        print(f"  {name:20}" + "".join(f"{one:>20}" for one in told))


def curves(found: Sequence[Replayed], spent: NDArray[np.float64]) -> NDArray[np.float64]:
    """The quartiles over seeds of the best loss that so much compute pays for."""
    losses = np.array([[one.best_within(flops) for flops in spent] for one in found])
    return np.asarray(np.quantile(losses, (0.25, 0.5, 0.75), axis=0, method="nearest"))


def label(name: str) -> str:
    """What a figure calls a way."""
    return f"{name}, shared prefixes" if WAYS[name].share else f"{name} runs"


def draw(found: dict[str, list[Replayed]], table: RunTable, stem: Path) -> None:
    """The best loss over executed compute, as long as searches went on: median and quartiles over seeds."""
    from nasgrow.report.figures import style

    whole = trial_flops(table)
    spent = np.geomspace(1, COMPUTE, 120) * whole
    lowest = min(table.losses(table.study.config.seeds))
    medians = [curves(searches, spent)[1] - lowest for searches in found.values()]
    worst = max(float(one[np.isfinite(one)][0]) for one in medians)

    @style.styled
    def figure() -> Any:
        canvas = style.canvas(4.6)
        axes = canvas.subplots()
        for index, (name, searches) in enumerate(found.items()):
            color = style.BASELINES[0] if name == AIM else style.SCHEDULES[(index - 1) % 5]
            low, middle, high = curves(searches, spent) - lowest
            shown = np.isfinite(middle) & (spent <= np.median([one.executed for one in searches]))
            x = spent[shown] / whole
            axes.plot(x, middle[shown], color=color, linestyle=style.DASHES[index % 5], label=label(name))
            high = np.minimum(high, worst)
            axes.fill_between(x, low[shown], high[shown], color=color, alpha=0.12, linewidth=0)
        axes.set_xscale("log")
        style.plain_log(axes.xaxis, [1, 2, 5, 10, 20, 50])
        axes.set_xlabel("executed compute (1 = the budget of one trial)")
        axes.set_ylim(-0.03 * worst, 1.05 * worst)
        axes.set_ylabel("regret: loss above the best\nof the table (nats per token)")
        axes.legend(loc="upper right")
        return canvas

    style.save(figure(), stem)
    print(f"{stem}.svg, {stem}.png")


def main() -> None:
    """Replay, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, nargs="*", default=TABLES, help="what nasgrow table wrote")
    parser.add_argument("--way", nargs="*", default=[*WAYS], choices=WAYS)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="searches of each way")
    parser.add_argument("--trials", type=int, nargs="*", default=COUNTS, help="at which regret is compared")
    parser.add_argument("--known", action="store_true", help="start with schedules of the literature")
    parser.add_argument("--to", type=Path, help="where to draw: the figure's name without .svg and .png")
    options = parser.parse_args()
    seeds, names = range(options.seeds), [AIM, *(name for name in options.way if name != AIM)]
    limits = [(name, "compute", TRIALS if name == AIM else COMPUTE) for name in names]
    limits += [(name, "trials", count) for name in names[1:] for count in options.trials]
    jobs = [(*limit, seed) for limit in limits for seed in seeds]
    with processes() as pool:
        for path in options.table:
            table, start = the_table(path, options.known), time.perf_counter()
            task = partial(search, path=path, known=options.known)
            found = dict(zip(jobs, pool.map(task, jobs, chunksize=1), strict=True))
            print(f"\n{path.name}: {table.points} points; {len(jobs)} searches replayed in ", end="")
            print(f"{time.perf_counter() - start:.0f} s")
            savings = {limit[0]: [found[(*limit, seed)] for seed in seeds] for limit in limits[: len(names)]}
            print_savings(savings, table)
            print_regret(found, names[1:], table, seeds, options.trials)
            if options.to is not None:
                draw(savings, table, options.to.with_name(f"{options.to.name}-{path.stem}"))


if __name__ == "__main__":
    main()
