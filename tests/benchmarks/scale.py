"""A search on simulated clusters of 1 to 512 workers: how busy they are, how soon they find what there is.

Recorded runs (``nasgrow table``) are searched through the live ledger, sampler and pruner, in simulated time:
every part of a run takes the seconds that it took when it was recorded. Of a table that tells no seconds,
time goes by the recorded FLOPs, with noise, and a time of 1 is one run alone on one worker. What it leaves
out: the time to ask and tell, to start workers, and to read and write states.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nasgrow.search.config import Pruner, Sampler
from nasgrow.search.simulate import Simulation, simulate
from nasgrow.search.table import Table, read_table

TABLE = Path(__file__).parent / "recorded" / "compound.parquet"
WORKERS = (1, 4, 16, 64, 256, 512)
SEARCHES = (
    (Sampler(kind="grid"), True),
    (Sampler(kind="grid"), False),
    (Sampler(kind="tpe"), True),
    (Sampler(kind="thrifty"), True),
    (Sampler(kind="tree"), True),
)
"""Samplers, and whether runs share trunks."""
CLOSE = 0.005
"""A loss within this share of the best is as good as found."""
NOISE = 0.1
"""The standard deviation of the logarithm of a duration that is not recorded."""


def line(found: Simulation, alone: Simulation, table: Table) -> str:
    """What a cluster did, beside one worker."""
    best = min(table.losses(table.study.config.seeds))
    when = found.time_to(best * (1 + CLOSE))
    faster = alone.time / found.time
    everything, unit = found.workers * found.time, " s" if table.timed else ""
    return (
        f"{found.workers:4} workers: time {found.time:7.2f}{unit} ({faster:6.1f} times faster), "
        f"utilisation {found.utilisation:4.0%}, waiting for others {found.waited / everything:4.0%}, "
        f"within {CLOSE:.1%} of the best after {'never' if when is None else f'{when:.2f}{unit}':>9}, "
        f"executed {found.executed:.3g} FLOPs, {found.executed / alone.executed:.2f} of one worker's"
    )


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, default=TABLE, help="a table that nasgrow table wrote")
    parser.add_argument("--trials", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    table = read_table(options.table)
    untold = f"by recorded FLOPs with noise {NOISE:g}, because the table tells no seconds; a whole run is 1"
    durations = "as many seconds as each part of a run took when it was recorded" if table.timed else untold
    print(f"{table.points} points, {options.trials} trials; durations: {durations}")
    for sampler, share in SEARCHES:
        print(f"{sampler.kind}, {'with' if share else 'without'} trunks")
        alone: Simulation | None = None
        for workers in WORKERS:
            found = simulate(
                table,
                workers,
                options.seed,
                sampler=sampler,
                pruner=Pruner(kind="none") if sampler.kind in ("grid", "tree") else Pruner(),
                trials=options.trials,
                share=share,
                noise=0.0 if table.timed else NOISE,
            )
            alone = alone or found
            print(f"  {line(found, alone, table)}", flush=True)


if __name__ == "__main__":
    main()
