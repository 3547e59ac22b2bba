"""A search on simulated clusters of 1 to 512 slots: how busy they are, how soon they find what there is.

Recorded runs (``nasgrow table``) are searched by the live driver and schedulers, in simulated time: every
part of a run takes the seconds that it took when it was recorded. For a table without seconds, time goes by
the recorded FLOPs, with noise, and a time of 1 is one run alone on one slot. What it leaves out: the time to
decide, to start workers, and to read and write states.
"""

from __future__ import annotations

import argparse
from math import isinf
from pathlib import Path

from nasgrow.experiments.replay import Replayed, replay
from nasgrow.study.config import Pruner, Sampler
from nasgrow.study.table import RunTable, read_table

TABLE = Path(__file__).parent / "recorded" / "compound.parquet"
SLOTS = (1, 4, 16, 64, 256, 512)
SEARCHES = (
    (Sampler(kind="grid"), True),
    (Sampler(kind="grid"), False),
    (Sampler(kind="tpe"), True),
    (Sampler(kind="tree"), True),
)
"""Samplers, and whether runs share prefixes."""
CLOSE = 0.005
"""A loss within this share of the best is as good as found."""
NOISE = 0.1
"""The standard deviation of the logarithm of a duration that is not recorded."""


def line(found: Replayed, alone: Replayed, table: RunTable) -> str:
    """What a cluster did, beside one slot."""
    best = min(table.losses(table.study.config.seeds))
    when = found.time_to(best * (1 + CLOSE))
    faster = alone.seconds / found.seconds
    everything, unit = found.slots * found.seconds, " s" if table.timed else ""
    return (
        f"{found.slots:4} slots: time {found.seconds:7.2f}{unit} ({faster:6.1f} times faster), "
        f"utilisation {found.utilisation:4.0%}, waiting for others {found.waited / everything:4.0%}, "
        f"within {CLOSE:.1%} of the best after {'never' if isinf(when) else f'{when:.2f}{unit}':>9}, "
        f"executed {found.executed:.3g} FLOPs, {found.executed / alone.executed:.2f} of one slot's"
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
        print(f"{sampler.kind}, {'with' if share else 'without'} shared prefixes")
        alone: Replayed | None = None
        for slots in SLOTS:
            found = replay(
                table,
                options.seed,
                sampler=sampler,
                pruner=Pruner(kind="none") if sampler.kind in ("grid", "tree") else Pruner(),
                trials=options.trials,
                share=share,
                slots=slots,
                noise=0.0 if table.timed else NOISE,
            )
            alone = alone or found
            print(f"  {line(found, alone, table)}", flush=True)


if __name__ == "__main__":
    main()
