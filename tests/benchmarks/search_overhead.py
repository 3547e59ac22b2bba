"""What deciding costs: the driver and its schedulers in memory, beside up to 5,000 ended trials.

Trials of ``per-dimension.yaml`` are run on a simulated cluster, which answers at once, with losses that
are made up; what they would cost is known. Printed for each scheduler and number of ended trials: the
processor time of a decision (an ask, or an evaluation at a rung), and of a trial with all its decisions,
evaluations and records. Then the same on a simulated cluster of 512 slots beside 5,000 ended trials, which
is stopped while there is work left: besides, how busy the cluster is in simulated time, and how long a
whole trial must take such that deciding takes no longer than training.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from random import Random
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")  # NumPy reads it when it loads
sys.path.insert(0, str(Path(__file__).parents[2]))

from nasgrow.driver import Driver
from nasgrow.executors.table import TableExecutor
from nasgrow.schedulers.base import Decision, Resume, Scheduler, Start
from nasgrow.schedulers.make import make_scheduler
from nasgrow.study.memory_store import MemoryStore
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord
from tests.benchmarks.search_large import MadeUp

ENDED = (0, 500, 2000, 5000)
MEASURED = 50
"""Trials at each number of ended ones, on one slot."""
SLOTS, HORIZON = 512, 1.0
"""Of the large cluster, and when it is stopped: one is the time of a whole trial."""
RUNGS = (0.2, 0.25, 0.4, 0.5, 0.6, 0.8)
"""Where the schedulers decide."""
KINDS = {
    "random": ("random", "none"),
    "tpe": ("tpe", "none"),
    "tpe, asha": ("tpe", "asha"),
    "tree": ("tree", "none"),
}


def ended_trials(study: ResolvedStudy, count: int) -> dict[int, TrialRecord]:
    """Records of trials that ended, at random points; with a pruner or a tree, two of three were pruned."""
    found, config = {}, study.config
    pauses = config.pruner.kind != "none" or config.sampler.kind == "tree"
    for number in range(count):
        random = Random(number)
        settings = study.space.settings
        parameters = {name: random.choice(list(setting.values)) for name, setting in settings.items()}
        loss, whole = random.uniform(2.0, 2.5), not (pauses and number % 3)
        reached = 20 if whole else random.choice((5, 10)) if config.sampler.kind != "tree" else 4
        found[number] = TrialRecord(
            kind="search",
            number=number,
            name=None,
            parameters=parameters,
            schedule={"events": []},
            words="",
            learning_rate=0.01,
            parameter_count=1,
            inference_flops=1,
            status="finished" if whole else "pruned",
            evaluations=[(step / 20, loss + 1 - step / 20) for step in range(reached + whole)][:reached],
            seeds=[0],
            losses=[loss if whole else None],
            runs={f"run {number}": study.budget},
            charged=study.budget,
            executed=study.budget,
        )
    return found


class Timed(Scheduler):
    """A scheduler that notes the processor time of each ask, and of each evaluation at a rung."""

    def __init__(self, timed: Scheduler) -> None:
        super().__init__(timed.study, timed.trials)
        self._timed = timed
        self.asks: list[float] = []
        self.rungs: list[float] = []

    def suggest(self) -> Start | Resume | None:
        """What the scheduler suggests."""
        start = time.process_time()
        suggestion = self._timed.suggest()
        self.asks.append(time.process_time() - start)
        return suggestion

    def on_evaluation(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        """What the scheduler decides."""
        start = time.process_time()
        decision = self._timed.on_evaluation(trial, at, loss)
        if round(at, 6) in RUNGS:
            self.rungs.append(time.process_time() - start)
        return decision


def measure(kind: str, ended: int, slots: int, trials: int | None = None) -> str:
    """Run so many trials beside ended ones, or as many as start until the horizon."""
    sampler, pruner = KINDS[kind]
    limit = ended + (trials or 1_000_000)
    changes = {"sampler": {"kind": sampler}, "pruner": {"kind": pruner}, "trials": limit}
    table = MadeUp(0, **changes)
    records = ended_trials(table.study, ended)
    executor = TableExecutor(table, slots, noise=0.1)
    scheduler = Timed(make_scheduler(table.study, records, executor.costs(table.study.config.seeds)))
    store = MemoryStore({"search": records})
    driver = Driver(table.study, {"search": scheduler}, {"search": records}, executor, store)
    busy = 0.0

    def stop() -> bool:
        nonlocal busy
        busy = executor.utilisation
        return trials is None and executor.now > HORIZON

    driver.stop = stop
    start = time.process_time()
    driver.run()
    used, many = time.process_time() - start, len(records) - ended
    line = (
        f"  {kind:10} beside {ended:5,} ended trials: {1000 * median(scheduler.asks):5.1f} ms an ask, "
        f"{1000 * median(scheduler.rungs):5.1f} ms a rung (medians), {1000 * used / many:5.1f} ms a trial; "
        f"{len(scheduler.asks) / sum(scheduler.asks):6.1f} asks a second"
    )
    return f"{line}; {busy:.0%} busy if a trial takes {used / HORIZON:.0f} s" if trials is None else line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", nargs="*", default=[*KINDS], choices=KINDS)
    options = parser.parse_args()
    print("one slot")
    for kind in options.scheduler:
        for ended in ENDED:
            print(measure(kind, ended, 1, MEASURED), flush=True)
    print(f"{SLOTS} slots")
    for kind in options.scheduler:
        print(measure(kind, ENDED[-1], SLOTS), flush=True)


if __name__ == "__main__":
    main()
