"""How cores are best divided: one worker with two threads, or two workers with one thread each.

Both train the same shape with the training loop's own step, for a few seconds at a time and in turn; nothing
but the number of threads is set. Printed are the medians of steps per second, added up over workers, and
their ratio: above 1, a thread for each worker is the better division.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from nasgrow.verify import PAPER

SHAPES = ((32, 2, 3.0), (64, 2, 4.0), (128, 4, 8.0), (256, 4, 12.0))
"""Hidden size, layers, and seconds at a time: enough for some ten steps on a busy machine."""
ROUNDS = 5


def work(hidden: int, layers: int) -> None:
    """Train whenever a line comes in, for the seconds that it says; answer with steps per second."""
    import numpy as np

    from nasgrow.config import TrainingConfig
    from nasgrow.model import Transformer
    from nasgrow.shape import Shape
    from nasgrow.training.optimizers import build_optimizers
    from nasgrow.training.step import backward, update

    training = TrainingConfig()
    shape = Shape.uniform(
        hidden=hidden,
        layers=layers,
        mlp=4 * hidden,
        heads=hidden // 16,
        key=16,
        value=16,
    )
    model = Transformer(shape, PAPER)
    optimizers = build_optimizers(model, training)
    size = (training.sequences, training.context + 1)
    tokens_bs = np.random.default_rng(0).integers(PAPER.vocab, size=size)

    def step() -> None:
        backward(model, tokens_bs, training.batch_tokens)
        update(optimizers, model, 1e-3, training.clip)

    for _ in range(3):
        step()
    for line in sys.stdin:
        steps, start = 0, time.perf_counter()
        while time.perf_counter() < start + float(line):
            step()
            steps += 1
        print(steps / (time.perf_counter() - start), flush=True)


def start(hidden: int, layers: int, threads: int) -> subprocess.Popen[str]:
    """A worker process, as the local engine would start it."""
    return subprocess.Popen(
        [sys.executable, __file__, "--shape", str(hidden), str(layers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"},
    )


def speed(workers: Sequence[subprocess.Popen[str]], seconds: float) -> float:
    """Steps per second of workers that train at the same time, added up."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(f"{seconds}\n")
        worker.stdin.flush()
    total = 0.0
    for worker in workers:
        assert worker.stdout is not None
        total += float(worker.stdout.readline())
    return total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", type=int, nargs=2, metavar=("HIDDEN", "LAYERS"), help=argparse.SUPPRESS)
    shape = parser.parse_args().shape
    if shape is not None:
        work(*shape)
        return
    for hidden, layers, seconds in SHAPES:
        workers = [start(hidden, layers, threads) for threads in (2, 1, 1)]
        one, two = workers[:1], workers[1:]
        for side in (one, two):
            speed(side, 0.5)  # both are ready, and warm
        pairs = [(speed(one, seconds), speed(two, seconds)) for _ in range(ROUNDS)]
        for worker in workers:
            worker.communicate()
        a, b = (statistics.median(rates) for rates in zip(*pairs, strict=True))
        ratios = sorted(after / before for before, after in pairs)
        print(
            f"h={hidden:3} N={layers}: 1 worker x 2 threads {a:6.1f}, 2 workers x 1 thread {b:6.1f} steps/s: "
            f"{statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
