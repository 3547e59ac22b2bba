"""What a run spends besides its training steps: data, evaluation, records, checkpoints, events.

Trains about a minute on the default data with two events, and prints the share of the wall time that was not
spent in steps (aim: below 5%), and what it went to.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nasgrow.config import Budget, RunConfig
from nasgrow.data import prepare
from nasgrow.schedule import schedule_from
from nasgrow.training import checkpoint, loop
from nasgrow.training.run import Run

SCHEDULE = {
    "start": {"hidden": 32, "layers": 1, "mlp": 128, "heads": 2, "key": 16, "value": 16},
    "events": [
        {"at": 0.15, "grow": [{"expand": "hidden", "to": 64}, {"expand": "mlp", "to": 256}]},
        {"at": 0.4, "grow": [{"expand": "heads", "to": 4}, {"expand": "layers", "at": [1]}]},
    ],
}
SECONDS = 60
STEPS = ("backward", "update")
REST = {
    "batch": "data",
    "evaluate": "evaluation",
    "logits_and_loss": "evaluation at events",
    "append_record": "records",
    "grow": "growing",
    "matmul_peak": "measuring the peak",
}


def main() -> None:
    """Measure and print."""
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] += time.perf_counter() - start

        return call

    config = RunConfig(schedule=schedule_from(SCHEDULE))
    corpus = prepare(config.data)
    device = torch.device("cpu")

    def run_for(flops: float) -> tuple[float, float]:
        spent.clear()
        run = Run.resolve(
            config.model_copy(update={"budget": Budget(flops=flops)}),
            vocab=corpus.vocab,
            fingerprint=corpus.fingerprint,
        )
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            prepare(config.data)
            loop.train(run, corpus, Path(folder), device=device)
            return time.perf_counter() - start, sum(spent[name] for name in STEPS)

    for name in (*STEPS, *REST):
        setattr(loop, name, timed(name, getattr(loop, name)))
    checkpoint.save = timed("save", checkpoint.save)
    flops = 1e11
    for _ in range(3):  # the first run warms up, the second tells how much a minute holds
        wall, steps = run_for(flops)
        flops *= min(SECONDS, 10 * wall) / wall
    print(f"{wall:.1f} s, of which {1 - steps / wall:.1%} not in training steps (aim: below 5%)")
    for name, what in {**REST, "save": "checkpoints"}.items():
        print(f"  {what}: {spent[name] / wall:.2%}")


if __name__ == "__main__":
    main()
