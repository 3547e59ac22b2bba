"""The share of the matmul peak that a training step reaches, by shape and batch.

FLOPs promise that a step of a small model takes as much less time as it has fewer of them. The last column
says how far that is from true: the time of a step over what its FLOPs would take at the pace of h=32, N=2
with the same batch. Shapes alternate in rounds, with one thread, and the median of the fastest round counts.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line does

import numpy as np
import torch

from nasgrow.config import TrainingConfig
from nasgrow.flops import step_flops
from nasgrow.model import Transformer
from nasgrow.shape import Shape, Variant
from nasgrow.training.machine import matmul_peak
from nasgrow.training.optimizers import build_optimizers
from nasgrow.training.step import backward, update

VARIANT = Variant(vocab=256, context=128)
SHAPES = [
    Shape.uniform(hidden=h, layers=layers, mlp=4 * h, heads=max(1, h // 16), key=key, value=key)
    for layers in (1, 2)
    for h in (8, 16, 32, 64, 128)
    for key in (8, 16)
    if key == 8 or h > 8
]
USUAL = Shape.uniform(hidden=32, layers=2, mlp=128, heads=2, key=16, value=16)
ROUNDS, STEPS = 4, 5


def action(shape: Shape, tokens: int) -> Callable[[], None]:
    """A training step."""
    training = TrainingConfig(context=VARIANT.context, batch_tokens=tokens)
    model = Transformer(shape, VARIANT, seed=0)
    optimizers = build_optimizers(model, training)
    tokens_bs = np.random.default_rng(0).integers(256, size=(training.sequences, VARIANT.context + 1))

    def step() -> None:
        backward(model, tokens_bs, tokens)
        float(update(optimizers, model, 1e-3, training.clip))

    return step


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    peak = matmul_peak(torch.device("cpu"))
    print(f"matmul peak with one thread: {peak:.3g} FLOPs per second")
    for tokens in (256, 1024, 4096):
        steps = {shape: action(shape, tokens) for shape in SHAPES}
        seconds = {shape: float("inf") for shape in SHAPES}
        for _ in range(ROUNDS):
            for shape, step in steps.items():
                step()
                taken = []
                for _ in range(STEPS):
                    start = time.perf_counter()
                    step()
                    taken.append(time.perf_counter() - start)
                seconds[shape] = min(seconds[shape], statistics.median(taken))
        flops = {shape: step_flops(shape, VARIANT, tokens // VARIANT.context) for shape in SHAPES}
        for shape in SHAPES:
            worth = flops[shape] / flops[USUAL] * seconds[USUAL]
            print(
                f"{tokens:4} tokens, {shape!s:50} {1e3 * seconds[shape]:7.2f} ms, "
                f"{flops[shape] / seconds[shape] / peak:4.0%} of peak, "
                f"{seconds[shape] / worth:.2f} times its FLOPs' worth"
            )


if __name__ == "__main__":
    main()
