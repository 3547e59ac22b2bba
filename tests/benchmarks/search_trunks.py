"""What a search finds for how much executed compute: independent TPE, trunks, pruning, prices, trees.

Searches of a table (``nasgrow table``) are replayed, hundreds of them, each way with the same seeds.
Independent TPE gets 100 trials, and what it finds is the aim. The others get the compute of 50 whole trials,
about what that executes because it comes back to points, in at most 200 trials. Told for each way, as medians
over seeds with 95% intervals from bootstrap samples: how many times less it executed until it had found a
schedule as good, against all that independent TPE executed, and against what that had executed when it found
its own best; a seed without a match counts as 0 times. Besides, the whole trials' compute until a loss within
0.5% of the table's best was found; and what was executed of what was charged, and of trials times budget.

``--live FOLDER`` trains afterwards: every way once, one worker each and as many at a time as there are cores,
with the settings and the names of the replays of seed 0 and one training seed, so that they must come to the
same. What was trained is kept in the folder: the same command goes on, and prints the same table.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing.pool
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from nasgrow.search.config import Pruner, Sampler, TrunksConfig
from nasgrow.search.ledger import Ledger
from nasgrow.search.replay import Replayed, replay
from nasgrow.search.table import Table, read_table
from nasgrow.search.taking_up import taken_up
from nasgrow.strict import parse

RECORDED = Path(__file__).parent / "recorded"
TABLE = RECORDED / "tabular.parquet"
SEEDS = 100
TRIALS = 100
"""What independent TPE gets."""
MOST, COMPUTE = 2, 0.5
"""For each of them the others get so many, and so many whole trials' compute: the first reached ends them."""
CLOSE = 0.005
"""A loss within this share of the best is as good as found."""


@dataclass(frozen=True)
class Way:
    """A way to search, as a study file says it."""

    sampler: dict[str, Any]
    pruner: dict[str, Any]
    trunks: bool
    panel: int = 0
    """Where it is drawn."""

    @property
    def settings(self) -> tuple[Sampler, Pruner]:
        return parse(Sampler, self.sampler, "sampler"), parse(Pruner, self.pruner, "pruner")


NONE, MEDIAN, HALVING = {"kind": "none"}, {"kind": "median"}, {"kind": "halving"}
AIM = "TPE, independent"
WAYS = {
    AIM: Way({"kind": "tpe"}, NONE, trunks=False),
    "random, independent": Way({"kind": "random"}, NONE, trunks=False),
    "random, trunks": Way({"kind": "random"}, NONE, trunks=True),
    "TPE, trunks": Way({"kind": "tpe"}, NONE, trunks=True),
    "thrifty, trunks": Way({"kind": "thrifty"}, NONE, trunks=True),
    "TPE, trunks, median": Way({"kind": "tpe"}, MEDIAN, trunks=True, panel=1),
    "TPE, trunks, halving": Way({"kind": "tpe"}, HALVING, trunks=True, panel=1),
    "thrifty, trunks, median": Way({"kind": "thrifty"}, MEDIAN, trunks=True, panel=1),
    "thrifty, trunks, halving": Way({"kind": "thrifty"}, HALVING, trunks=True, panel=1),
    "tree, trunks": Way({"kind": "tree"}, NONE, trunks=True, panel=1),
}
PANELS = ("whole trials", "trials given up early")


@cache
def the_table(path: Path) -> Table:
    """The table, read once in each process."""
    return read_table(path)


def processes() -> multiprocessing.pool.Pool:
    """A process for each core, each with one thread: several would wait for each other."""
    os.environ["OMP_NUM_THREADS"] = "1"
    return multiprocessing.get_context("spawn").Pool()


def search(
    job: tuple[str, int], *, path: Path, trials: int = TRIALS, seeds: Sequence[int] | None = None
) -> Replayed:
    """One search; ``seeds`` are the training seeds of each trial, by default the table's."""
    name, seed = job
    table = the_table(path)
    sampler, pruner = WAYS[name].settings
    limits = limits_of(name, trials, point_flops(table, seeds))
    return replay(table, seed, sampler=sampler, pruner=pruner, share=WAYS[name].trunks, seeds=seeds, **limits)


def limits_of(name: str, trials: int, flops: int) -> dict[str, Any]:
    """What ends a way's search, where independent TPE gets so many trials, each of so many FLOPs."""
    if name == AIM:
        return {"trials": trials, "total_flops": None}
    return {"trials": MOST * trials, "total_flops": COMPUTE * trials * flops}


def point_flops(table: Table, seeds: Sequence[int] | None = None) -> int:
    """The compute of a whole trial."""
    return table.study.budget * len(seeds or table.study.config.seeds)


def best(found: Replayed) -> float:
    return min((loss for loss in found.losses if loss is not None), default=math.inf)


def median(values: Sequence[float]) -> str:
    """A median, and its 95% interval from 4,000 bootstrap samples."""
    sample = np.array(values)
    drawn = np.median(np.random.default_rng(0).choice(sample, (4000, len(sample))), axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975), method="nearest")  # some may be infinite
    return f"{np.median(sample):.2f} ({low:.2f} to {high:.2f})"


def times_less(aim: Sequence[Replayed], found: Sequence[Replayed], *, until: bool) -> list[float]:
    """By seed: what independent TPE executed (until it found its best), over what a way did for a match."""
    ratios = []
    for theirs, ours in zip(aim, found, strict=True):
        target = best(theirs)
        spent = theirs.executed_until(target) if until else sum(theirs.executed)
        ratios.append(spent / ours.executed_until(target))
    return ratios


def told(found: dict[str, list[Replayed]], table: Table, seeds: Sequence[int] | None = None) -> None:
    """Print the figures of each way."""
    aim, budget, seeds = found[AIM], point_flops(table, seeds), seeds or table.study.config.seeds
    reached = [best(one) - min(table.losses(seeds)) for one in aim]
    spent = [sum(one.executed) / budget for one in aim]
    found_after = [one.executed_until(best(one)) / budget for one in aim]
    print(
        f"independent TPE, {aim[0].trials} trials: {median(spent)} whole trials' compute executed (equal "
        f"points are trained once), its best after {median(found_after)}; "
        f"regret {median(reached)}, mean {fmean(reached):.4f}"
    )
    print(f"{'':26}{'times less than all of it':>26}{'than until its best':>22}  matched", end="")
    print(f"{'until within 0.5%':>26}  executed / charged  / trials x budget")
    close = min(table.losses(seeds)) * (1 + CLOSE)
    for name, searches in found.items():
        whole, until = (times_less(aim, searches, until=until) for until in (False, True))
        matched = np.mean(np.array(whole) > 0)
        charged = fmean(sum(one.executed) / sum(one.charged) for one in searches)
        trials = fmean(sum(one.executed) / (one.trials * budget) for one in searches)
        near = [one.executed_until(close) / budget for one in searches]
        print(f"{name:26}{median(whole):>26}{median(until):>22}  {matched:7.0%}", end="")
        print(f"{median(near):>26}  {charged:18.2f}  {trials:17.2f}")


def curves(found: Sequence[Replayed], spent: NDArray[np.float64]) -> NDArray[np.float64]:
    """The quartiles over seeds of the best loss that so much compute pays for."""
    losses = np.array([[one.best_within(flops) for flops in spent] for one in found])
    return np.asarray(np.quantile(losses, (0.25, 0.5, 0.75), axis=0, method="nearest"))


def draw(found: dict[str, list[Replayed]], table: Table, stem: Path) -> None:
    """The best loss over executed compute, as long as searches went on: median and quartiles over seeds."""
    from nasgrow.report.figures import style

    budget = point_flops(table)
    spent = np.geomspace(1, COMPUTE * TRIALS, 120) * budget
    lowest = min(table.losses(table.study.config.seeds))
    medians = [curves(searches, spent)[1] - lowest for searches in found.values()]
    worst = max(float(one[np.isfinite(one)][0]) for one in medians)

    @style.styled
    def figure() -> Any:
        canvas = style.canvas(4.6)
        panels = canvas.subplots(1, 2, sharey=True)
        for panel, axes in enumerate(panels):
            names = [AIM, *(name for name, way in WAYS.items() if way.panel == panel and name != AIM)]
            for index, name in enumerate(names):
                color = style.BASELINES[0] if name == AIM else style.SCHEDULES[(index - 1) % 5]
                low, middle, high = curves(found[name], spent) - lowest
                ended = np.median([sum(one.executed) for one in found[name]])
                shown = np.isfinite(middle) & (spent <= ended)
                x = spent[shown] / budget
                axes.plot(x, middle[shown], color=color, linestyle=style.DASHES[index % 5], label=name)
                high = np.minimum(high, worst)
                axes.fill_between(x, low[shown], high[shown], color=color, alpha=0.12, linewidth=0)
            axes.set_xscale("log")
            style.plain_log(axes.xaxis, [1, 2, 5, 10, 20, 50])
            axes.set_xlabel("compute executed (whole trials)")
            axes.set_title(PANELS[panel])
            axes.legend(loc="upper right")
        panels[0].set_ylim(-0.03 * worst, 1.05 * worst)
        panels[0].set_ylabel("regret (nats per token)")
        return canvas

    style.save(figure(), stem)
    print(f"{stem}.svg, {stem}.png")


def train(job: tuple[str, Path], *, path: Path, trials: int) -> tuple[Replayed, float]:
    """Search for real, as one worker does: what each claim came to, and the seconds that runs took."""
    name, root = job
    import torch

    from nasgrow.data import prepare
    from nasgrow.search.life import begin
    from nasgrow.search.objective import pursue
    from nasgrow.search.outcome import Setting
    from nasgrow.search.storage import beating
    from nasgrow.search.study import Study
    from nasgrow.search.summary import summarise
    from nasgrow.search.trunks import open_prices, open_trunks

    torch.set_num_threads(1)
    config, (sampler, pruner) = the_table(path).study.config, WAYS[name].settings
    changes = {
        "name": "replay-0",
        "sampler": sampler,
        "pruner": pruner,
        "seeds": config.seeds[:1],
        "trunks": (config.trunks or TrunksConfig()) if WAYS[name].trunks else None,
        "storage": None,
        "hours": None,
        **limits_of(name, trials, point_flops(the_table(path), config.seeds[:1])),
    }
    study = Study.resolve(config.model_copy(update=changes), name)
    folder, corpus, device = root / "runs" / "replay-0", prepare(study.config.data), torch.device("cpu")
    ledger, trunks = begin(study, folder, corpus.fingerprint), open_trunks(study, folder)
    prices = open_prices(study, folder, corpus, device, trunks)
    setting = Setting(folder, corpus, device, lambda progress: None, print, lambda: False, trunks)
    while not ledger.ended(("search",)):
        claim = ledger.claim(("search",), prices)
        if claim is None:
            time.sleep(1)  # what a process that was killed had begun is offered again after a while
            continue
        with beating(ledger.storage, claim.trial._trial_id):
            pursue(claim, ledger, setting, lambda trial, run, place: None)
    return claimed(ledger), summarise(ledger).seconds


def claimed(ledger: Ledger) -> Replayed:
    """A search that was trained, claim by claim, as its database tells it."""
    from optuna.trial import TrialState

    study = ledger.optuna_study("search")
    every = ledger.storage.get_all_trials(study._study_id)
    ended = [one for one in every if one.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    ended.sort(key=lambda one: one.datetime_complete or datetime.max)

    def more(trial: FrozenTrial, name: str) -> int:
        """What a trial adds to what it had when it was given up."""
        before = every[taken_up(trial)[-1]].user_attrs[name] if taken_up(trial) else 0
        return int(trial.user_attrs[name] - before)

    losses = tuple(one.value if one.state == TrialState.COMPLETE else None for one in ended)
    charged, executed = (tuple(more(one, name) for one in ended) for name in ("charged", "executed"))
    return Replayed(losses, charged, executed, len(ledger.trials("search")))


def live(pool: multiprocessing.pool.Pool, folder: Path, path: Path, trials: int) -> None:
    """Train every way, and hold each against its replay."""
    table = the_table(path)
    seeds = table.study.config.seeds[:1]
    jobs = [(name, 0) for name in WAYS]
    again = dict(
        zip(WAYS, pool.map(partial(search, path=path, trials=trials, seeds=seeds), jobs), strict=True)
    )
    runs = sum(sum(one.executed) for one in again.values()) / table.study.budget
    flops = table.study.budget
    print(f"\nlive, one training seed: by their replays {runs:.0f} runs of {flops:.3g} FLOPs in all")
    told({name: [one] for name, one in again.items()}, table, seeds)
    began = time.perf_counter()
    places = [(name, folder / name.replace(", ", "-").replace(" ", "-")) for name in WAYS]
    trained = pool.map(partial(train, path=path, trials=trials), places, chunksize=1)
    print(f"trained, {time.perf_counter() - began:.0f} s:")
    told({name: [one] for name, (one, _) in zip(WAYS, trained, strict=True)}, table, seeds)
    for name, (one, took) in zip(WAYS, trained, strict=True):
        same = (
            "as its replay"
            if one == again[name]
            else f"not as its replay, which {_words(again[name], table)}"
        )
        print(f"  {name}: {took:.0f} s; {_words(one, table)}; {same}")


def _words(found: Replayed, table: Table) -> str:
    executed, charged = sum(found.executed), sum(found.charged)
    return (
        f"best loss {best(found):.4f}, {found.trials} trials executed "
        f"{executed / table.study.budget:.1f} runs' compute, {executed / charged:.2f} of what was charged"
    )


def main() -> None:
    """Replay, print, draw, and train if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, default=TABLE, help="a table that nasgrow table wrote")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="searches of each way; 0 replays only what is trained"
    )
    parser.add_argument("--to", type=Path, help="where to draw: the figure's name without .svg and .png")
    parser.add_argument("--live", type=Path, metavar="FOLDER", help="train, too: in a folder that is kept")
    parser.add_argument("--trials", type=int, default=TRIALS, help="of independent TPE, where it is trained")
    options = parser.parse_args()
    table = the_table(options.table)
    print(f"{options.table.name}: {table.points} points, {options.seeds} searches of each way")
    began = time.perf_counter()
    with processes() as pool:
        if options.seeds:
            jobs = [(name, seed) for name in WAYS for seed in range(options.seeds)]
            searches = pool.map(partial(search, path=options.table), jobs, chunksize=1)
            found = {
                name: searches[place * options.seeds : (place + 1) * options.seeds]
                for place, name in enumerate(WAYS)
            }
            print(f"{len(jobs)} searches replayed in {time.perf_counter() - began:.0f} s")
            told(found, table)
            if options.to is not None:
                draw(found, table, options.to)
        if options.live is not None:
            live(pool, options.live, options.table, options.trials)


if __name__ == "__main__":
    main()
