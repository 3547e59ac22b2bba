"""The store of states: looking up among 10,000 of them, and what keeping states takes of a run's time.

Aims: the longest stored prefix of a run in under 10 ms, its keys included; writing in under 1% of the
training that it can spare.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nasgrow.config import Budget, RunConfig
from nasgrow.data import prepare
from nasgrow.schedule import schedule_from
from nasgrow.study.config import PrefixCacheConfig
from nasgrow.training.loop import train
from nasgrow.training.machine import numerics
from nasgrow.training.prefixes import PrefixCache, StateStore, following, forks
from nasgrow.training.records import read_metrics
from nasgrow.training.run import Run

STATES = 10_000
TIMES = tuple(round(0.05 * index, 2) for index in range(1, 17))
SCHEDULE = {
    "start": {"hidden": 32, "layers": 1, "mlp": 128, "heads": 2, "key": 16, "value": 16},
    "events": [
        {"at": 0.15, "grow": [{"expand": "hidden", "to": 64}, {"expand": "mlp", "to": 256}]},
        {"at": 0.4, "grow": [{"expand": "heads", "to": 4}, {"expand": "layers", "at": [1]}]},
    ],
}
SECONDS = 30


def timed(function: Callable[[], Any], times: int = 20) -> str:
    """The median of several calls, wall and processor time: the machine may be shared."""
    wall, processor = [], []
    for _ in range(times):
        start = time.perf_counter(), time.process_time()
        function()
        wall.append(time.perf_counter() - start[0])
        processor.append(time.process_time() - start[1])
    return (
        f"{1000 * statistics.median(wall):8.2f} ms ({1000 * statistics.median(processor):.2f} of processor)"
    )


def look_up(folder: Path, run: Run) -> None:
    """Fill a store with states, and look for a run's."""
    store, environment = StateStore(folder / "full", 1e12), numerics(torch.device("cpu"))

    def write(where: Path) -> None:
        (where / "state.safetensors").write_bytes(b"state")

    store._unseen = 0.0  # do not measure the store while it is filled
    for number in range(STATES):
        store.put(f"{number * 7919:08x}" * 8, write, {"charged": number, "before": []})
    steps = run.stages[-1].end
    places = forks(run, TIMES, environment)
    keys = [fork.key for fork in places]
    print(f"{STATES:,} states; a run of {steps:,} steps with {len(keys)} forks")
    print(f"  keys of a run                        {timed(lambda: forks(run, TIMES, environment))}")
    print(f"  longest stored prefix, none there    {timed(lambda: store.latest(keys))}")
    store.put(keys[0], write, {"charged": 1, "before": []})
    print(f"  longest stored prefix, the first     {timed(lambda: store.latest(keys))}")
    print(f"  measuring the store                  {timed(store.size, 1)}")
    print(f"  choosing and removing a tenth of it  {timed(lambda: store.prune(0.9 * store.size()), 1)}")


def keep(folder: Path, config: RunConfig) -> None:
    """Train with a store and print the share that writing took, and the ratio of a reuse to training."""
    folder.mkdir()
    corpus, device = prepare(config.data), torch.device("cpu")
    taken: list[float] = []

    class Watched(PrefixCache):
        def wrote(self, seconds: float) -> None:
            super().wrote(seconds)
            taken.append(seconds)

    cache = Watched(StateStore(folder / "prefixes", 1e10), TIMES, PrefixCacheConfig().share)
    run = Run.resolve(config, vocab=corpus.vocab, fingerprint=corpus.fingerprint)
    wall = []
    for name in ("first", "again"):
        (folder / name).mkdir()
        with following(cache, run, folder / name, device, print, lambda: False) as prefix:
            result = train(run, corpus, folder / name, device=device, prefix=prefix)
        wall.append(result.seconds)
        first = next(read_metrics(folder / name))
        assert first["step"] == 0
        print(f"{name}: {result.seconds:.1f} s, executed / charged {result.executed / result.charged:.3f}")
    entries = list(cache.store.entries())
    mean = sum(entry.size for entry in entries) / len(entries)
    print(f"  {len(entries)} of {len(TIMES)} states kept, {mean / 1e6:.2f} MB each")
    print(f"  writing one: {1000 * statistics.median(taken):.1f} ms (median)")
    share = sum(taken) / (wall[0] - wall[1])
    print(f"  writing / training until the last state: {share:.2%} (aim: below 1%)")


def main() -> None:
    """Measure and print."""
    config = RunConfig(schedule=schedule_from(SCHEDULE), budget=Budget(flops=2e12))
    longer = config.with_options(flops=SECONDS * 2e10)
    with tempfile.TemporaryDirectory() as name:
        look_up(Path(name), Run.resolve(config, vocab=256, fingerprint=""))
        keep(Path(name) / "kept", longer)


if __name__ == "__main__":
    main()
