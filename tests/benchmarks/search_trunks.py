"""What a search finds for how much executed compute: independent TPE, trunks, pruning, prices, trees.

Searches of a table (``nasgrow table``) are replayed, hundreds of them, each way with the same seeds.
Independent TPE gets 100 trials, and what it finds is the aim. The others get the compute of 50 whole trials,
about what that executes because it comes back to points, in at most 200 trials. Told for each way, as medians
over seeds with 95% intervals from bootstrap samples: how many times less it executed until it had found a
schedule as good, against all that independent TPE executed, and against what that had executed when it found
its own best; a seed without a match counts as 0 times. Besides, the whole trials' compute until a loss within
0.5% of the table's best was found; and what was executed of what was charged, and of trials times budget.

``--live`` trains afterwards: independent TPE and the best of the other ways, side by side, one worker each,
with the settings and the names of the replays of seed 0, so that they must come to the same.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nasgrow.search.config import Pruner, Sampler, TrunksConfig
from nasgrow.search.replay import Replayed, replay
from nasgrow.search.table import Table, read_table
from nasgrow.strict import parse

RECORDED = Path(__file__).parent / "recorded"
TABLE = RECORDED / "tabular.parquet"
SEEDS = 100
TRIALS = 100
"""What independent TPE gets."""
MOST, COMPUTE = 200, 50
"""Trials of the other ways, and whole trials' compute: whichever is reached first ends a search."""
CLOSE = 0.005
"""A loss within this share of the best is as good as found."""
LIVE = 40
"""Trials of each way that is trained."""


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


def search(job: tuple[str, int], *, path: Path) -> Replayed:
    """One search."""
    name, seed = job
    table = the_table(path)
    sampler, pruner = WAYS[name].settings
    limits: dict[str, Any] = {"trials": TRIALS}
    if name != AIM:
        limits = {"trials": MOST, "total_flops": COMPUTE * point_flops(table)}
    return replay(table, seed, sampler=sampler, pruner=pruner, share=WAYS[name].trunks, **limits)


def point_flops(table: Table) -> int:
    """The compute of a whole trial."""
    return table.study.budget * len(table.study.config.seeds)


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


def told(found: dict[str, list[Replayed]], table: Table) -> str:
    """Print the figures of each way; returns the best way but independent TPE."""
    aim, budget = found[AIM], point_flops(table)
    reached = [best(one) - min(table.losses(table.study.config.seeds)) for one in aim]
    spent = [sum(one.executed) / budget for one in aim]
    print(
        f"independent TPE, {TRIALS} trials: {median(spent)} whole trials' compute executed (equal points are "
        f"trained once), its best after {median([one.executed_until(best(one)) / budget for one in aim])}; "
        f"regret {median(reached)}, mean {fmean(reached):.4f}"
    )
    print(f"{'':26}{'times less than all of it':>26}{'than until its best':>22}  matched", end="")
    print(f"{'until within 0.5%':>26}  executed / charged  / trials x budget")
    close = min(table.losses(table.study.config.seeds)) * (1 + CLOSE)
    ranked = {}
    for name, searches in found.items():
        whole, until = (times_less(aim, searches, until=until) for until in (False, True))
        matched = np.mean(np.array(whole) > 0)
        charged = fmean(sum(one.executed) / sum(one.charged) for one in searches)
        trials = fmean(sum(one.executed) / (one.trials * budget) for one in searches)
        near = [one.executed_until(close) / budget for one in searches]
        print(f"{name:26}{median(whole):>26}{median(until):>22}  {matched:7.0%}", end="")
        print(f"{median(near):>26}  {charged:18.2f}  {trials:17.2f}")
        ranked[name] = float(np.median(whole))
    return max((name for name in ranked if name != AIM), key=lambda name: ranked[name])


def curves(found: Sequence[Replayed], spent: NDArray[np.float64]) -> NDArray[np.float64]:
    """The quartiles over seeds of the best loss that so much compute pays for."""
    losses = np.array([[one.best_within(flops) for flops in spent] for one in found])
    return np.asarray(np.quantile(losses, (0.25, 0.5, 0.75), axis=0, method="nearest"))


def draw(found: dict[str, list[Replayed]], table: Table, stem: Path) -> None:
    """The best loss over executed compute, as long as searches went on: median and quartiles over seeds."""
    from nasgrow.report.figures import style

    budget = point_flops(table)
    spent = np.geomspace(1, COMPUTE, 120) * budget
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
    """Search for real, as one worker does: what each claim came to, and the seconds that all took."""
    name, root = job
    import torch
    from optuna.trial import TrialState

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
        "trials": trials,
        "seeds": config.seeds[:1],
        "trunks": (config.trunks or TrunksConfig()) if WAYS[name].trunks else None,
        "storage": None,
    }
    study = Study.resolve(config.model_copy(update=changes), name)
    folder, corpus, device = root / "runs" / "replay-0", prepare(study.config.data), torch.device("cpu")
    ledger, trunks = begin(study, folder, corpus.fingerprint), open_trunks(study, folder)
    prices = open_prices(study, folder, corpus, device, trunks)
    setting = Setting(folder, corpus, device, lambda progress: None, print, lambda: False, trunks)
    losses: list[float | None] = []
    charged: list[int] = []
    executed: list[int] = []
    began = time.perf_counter()
    while (claim := ledger.claim(("search",), prices)) is not None:
        with beating(ledger.storage, claim.trial._trial_id):
            pursue(claim, ledger, setting, lambda trial, run, place: None)
        ended, now = ledger.storage.get_trial(claim.trial._trial_id), summarise(ledger)
        losses.append(ended.value if ended.state == TrialState.COMPLETE else None)
        charged.append(now.charged - sum(charged))
        executed.append(now.executed - sum(executed))
    seconds = time.perf_counter() - began
    return Replayed(tuple(losses), tuple(charged), tuple(executed), len(ledger.trials("search"))), seconds


def live(pool: multiprocessing.pool.Pool, chosen: str, path: Path, trials: int) -> None:
    """Train two ways side by side, and hold them against their replays."""
    table, began = the_table(path), time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        places = [(AIM, Path(name) / "aim"), (chosen, Path(name) / "chosen")]
        (theirs, theirs_took), (ours, ours_took) = pool.map(
            partial(train, path=path, trials=trials), places, chunksize=1
        )
    seeds = table.study.config.seeds[:1]
    print(f"\nlive, {trials} trials of one seed, side by side: {time.perf_counter() - began:.0f} s")
    for name, found, took in ((AIM, theirs, theirs_took), (chosen, ours, ours_took)):
        sampler, pruner = WAYS[name].settings
        share = WAYS[name].trunks
        again = replay(table, 0, sampler=sampler, pruner=pruner, trials=trials, share=share, seeds=seeds)
        same = "as its replay" if found == again else f"not as its replay, which {_words(again, table)}"
        print(f"  {name}: {took:.0f} s; {_words(found, table)}; {same}")
    target = best(theirs)
    matched = ours.executed_until(target)
    print(
        f"  {chosen} needs {matched / table.study.budget:.1f} runs' compute for independent TPE's best: "
        f"{sum(theirs.executed) / matched:.2f} times less than all that executed, "
        f"{theirs.executed_until(target) / matched:.2f} times less than it had executed by then"
    )


def _words(found: Replayed, table: Table) -> str:
    executed, charged = sum(found.executed), sum(found.charged)
    return (
        f"best loss {best(found):.4f}, {len(found.losses)} trials executed "
        f"{executed / table.study.budget:.1f} runs' compute, {executed / charged:.2f} of what was charged"
    )


def main() -> None:
    """Replay, print, draw, and train if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, default=TABLE, help="a table that nasgrow table wrote")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="searches of each way")
    parser.add_argument("--to", type=Path, help="where to draw: the figure's name without .svg and .png")
    parser.add_argument("--live", type=int, nargs="?", const=LIVE, metavar="TRIALS", help="train, too")
    options = parser.parse_args()
    table = the_table(options.table)
    print(f"{options.table.name}: {table.points} points, {options.seeds} searches of each way")
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool() as pool:
        jobs = [(name, seed) for name in WAYS for seed in range(options.seeds)]
        searches = pool.map(partial(search, path=options.table), jobs, chunksize=1)
        found = {
            name: searches[place * options.seeds : (place + 1) * options.seeds]
            for place, name in enumerate(WAYS)
        }
        print(f"{len(jobs)} searches replayed in {time.perf_counter() - began:.0f} s")
        chosen = told(found, table)
        if options.to is not None:
            draw(found, table, options.to)
        if options.live is not None:
            live(pool, chosen, options.table, options.live)


if __name__ == "__main__":
    main()
