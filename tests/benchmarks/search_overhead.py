"""What deciding costs: the driver and its schedulers in memory, beside up to 5,000 ended trials.

Trials of ``per-dimension.yaml`` are run on a simulated cluster, which answers at once, with losses that are
made up. Printed for each scheduler and number of ended trials: the time from one start of a trial to the next
(asking, recording, its 20 evaluations and its end), and how many trials start in a second. Then the same on a
simulated cluster of 512 slots beside 5,000 ended trials, where all trials that run are pending: besides, how
busy the cluster is, in simulated time. Aim: a trial a second for each minute that 64 trials train.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")  # NumPy reads it when it loads
sys.path.insert(0, str(Path(__file__).parents[2]))

from nasgrow.driver import Driver
from nasgrow.executors.table import TableExecutor
from nasgrow.schedulers.make import make_scheduler
from nasgrow.study.memory import MemoryStore
from nasgrow.study.study import Study
from nasgrow.study.trials import TrialRecord
from tests.benchmarks.search_large import MadeUp

ENDED = (0, 500, 2000, 5000)
MEASURED = 50
"""Trials at each number of ended ones, on one slot."""
SLOTS, MANY = 512, 1024
"""Of the large cluster, and the trials that it starts."""
KINDS = {
    "random": ("random", "none"),
    "tpe": ("tpe", "none"),
    "tpe, asha": ("tpe", "asha"),
    "tree": ("tree", "none"),
}


def ended_trials(study: Study, count: int) -> dict[int, TrialRecord]:
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


def measure(kind: str, ended: int, slots: int, trials: int) -> str:
    """Run trials beside ended ones."""
    sampler, pruner = KINDS[kind]
    changes = {"sampler": {"kind": sampler}, "pruner": {"kind": pruner}, "trials": ended + trials}
    table = MadeUp(0, **changes)
    records = ended_trials(table.study, ended)
    executor = TableExecutor(table, slots, noise=0.1)
    scheduler = make_scheduler(table.study, records, executor.costs(table.study.config.seeds))
    store = MemoryStore({"search": records})
    driver = Driver(table.study, {"search": scheduler}, {"search": records}, executor, store)
    start, cpu = time.perf_counter(), time.process_time()
    driver.run()
    took, used = time.perf_counter() - start, time.process_time() - cpu
    many = len(records) - ended
    line = (
        f"  {kind:10} beside {ended:5,} ended trials: {1000 * used / many:7.1f} ms of a processor a trial, "
    )
    line += f"{many / used:6.1f} trials a second ({many / took:.1f} by the clock)"
    return f"{line}; utilisation {executor.utilisation:.0%}" if slots > 1 else line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", nargs="*", default=[*KINDS], choices=KINDS)
    options = parser.parse_args()
    print("one slot")
    for kind in options.scheduler:
        for ended in ENDED:
            print(measure(kind, ended, 1, MEASURED), flush=True)
    print(f"{SLOTS} slots, {MANY} trials")
    for kind in options.scheduler:
        print(measure(kind, ENDED[-1], SLOTS, MANY), flush=True)


if __name__ == "__main__":
    main()
