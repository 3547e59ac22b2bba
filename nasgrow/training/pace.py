"""How long a step takes on this machine, and how much memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nasgrow.training.run import Run
from nasgrow.training.state import TrainState
from nasgrow.training.step import backward, evaluate, update

STEPS = 3


@dataclass(frozen=True)
class Pace:
    """What training of one shape takes.

    Attributes:
        step: Seconds of a step.
        evaluation: Seconds of evaluating as many tokens as a step has.
        saved: Bytes that a forward pass keeps for the backward pass.
    """

    step: float
    evaluation: float
    saved: int


def measure_pace(run: Run, stage: int, device: torch.device) -> Pace:
    """The median of a few steps of a stage's shape on random tokens, after one that warms up."""
    config = run.config.training
    state = TrainState.fresh(run, stage, device)
    micro_tokens = config.micro_tokens or config.batch_tokens
    random = np.random.default_rng(0)
    size = (config.sequences, config.context + 1)
    tokens_bs = random.integers(run.schedule.start.vocab, size=size)

    def step() -> None:
        backward(state.model, tokens_bs, micro_tokens)
        float(update(state.optimizers, state.model, 0.0, config.clip))

    def look() -> None:
        evaluate(state.model, torch.from_numpy(tokens_bs), micro_tokens)

    saved = _saved(lambda: backward(state.model, tokens_bs[: micro_tokens // config.context], micro_tokens))
    return Pace(_median(step), _median(look), saved)


def _median(action: Callable[[], None]) -> float:
    seconds = []
    for _ in range(1 + STEPS):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def _saved(passes: Callable[[], object]) -> int:
    """The bytes of what a forward pass saves: each storage once, parameters not among them."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not (tensor.is_leaf and tensor.requires_grad):
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        passes()
    return sum(sizes.values())
