"""How long a step takes on this machine."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from nasgrow.training.run import Run
from nasgrow.training.state import TrainState
from nasgrow.training.step import backward, update

STEPS = 3


def seconds_per_step(run: Run, stage: int, device: torch.device) -> float:
    """The median of a few steps of a stage's shape on random tokens, after one that warms up."""
    config = run.config.training
    state = TrainState.fresh(run, stage, device)
    random = np.random.default_rng(0)
    size = (config.sequences, config.context + 1)
    seconds = []
    for _ in range(1 + STEPS):
        tokens_bs = random.integers(run.schedule.start.vocab, size=size)
        start = time.perf_counter()
        backward(state.model, tokens_bs, config.micro_tokens or config.batch_tokens)
        float(update(state.optimizers, state.model, 0.0, config.clip))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
