"""Measure how long steps take on this machine, and how much memory they need."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from nasgrow.config import TrainingConfig
from nasgrow.model import Transformer
from nasgrow.shape import Shape, Variant
from nasgrow.training.compiling import compile_for
from nasgrow.training.machine import describe_machine
from nasgrow.training.optimizers import build_optimizers
from nasgrow.training.step import backward, evaluate, update
from nasgrow.training.step_seconds import StepSeconds, Timing, fit, quantities

ROUNDS = 8
"""How often each shape is measured on a CPU, all shapes in turn; the fastest round counts.

Whatever disturbs a round makes it slower. On a quiet machine the fastest of eight repeats within 5%, the
median of three within 16%.
"""

MIN_ROUND_STEPS, MAX_ROUND_STEPS = 3, 8
"""The least and the largest number of steps of a shape in a round."""

ROUND_SECONDS = 0.02
"""Once the steps of a shape have taken this long in a round, only the least number is completed."""


def device_name(device: torch.device) -> str:
    """Return the name of a device, with the number of threads unless it is a GPU."""
    name, threads = str(describe_machine(device)["device"]), torch.get_num_threads()
    return name if device.type == "cuda" else f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def measure_steps(
    cases: Sequence[tuple[Shape, TrainingConfig]], variant: Variant, device: torch.device
) -> StepSeconds:
    """Time steps and evaluations of some shapes on random tokens; fit a model of their seconds.

    Args:
        cases: The shapes, each with the training settings of its steps.
        variant: The kind of transformer.
        device: The device to measure.
    """
    steps: list[list[float]] = [[] for _ in cases]
    looks: list[list[float]] = [[] for _ in cases]
    for _ in range(1 if device.type == "cuda" else ROUNDS):  # a GPU is not shared, and compiles each time
        for place, (shape, training) in enumerate(cases):
            step, look = _actions(shape, variant, training, device)
            steps[place].append(_timed(step))
            looks[place].append(_timed(look))
    timings = tuple(
        Timing(str(shape), training.batch_tokens, min(own), min(looked))
        for (shape, training), own, looked in zip(cases, steps, looks, strict=True)
    )
    rows = [quantities(shape, variant, training) for shape, training in cases]
    return StepSeconds(
        device=device_name(device),
        step=fit(rows, [timing.step for timing in timings]),
        evaluation=fit(rows, [timing.evaluation for timing in timings]),
        timings=timings,
    )


def saved_bytes(shape: Shape, variant: Variant, training: TrainingConfig, device: torch.device) -> int:
    """Measure the bytes that the forward pass of one micro-batch saves for its backward pass.

    Each storage counts once; parameters do not count. The model runs eagerly, even on a GPU.
    """
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not (tensor.is_leaf and tensor.requires_grad):
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    micro_tokens = training.micro_tokens or training.batch_tokens
    model = Transformer(shape, variant, seed=0, device=device)
    tokens_bs = _random_tokens(variant, micro_tokens // training.context, training.context)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        backward(model, tokens_bs, micro_tokens)
    return sum(sizes.values())


def _actions(
    shape: Shape, variant: Variant, training: TrainingConfig, device: torch.device
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return two functions: one training step of a new model, and one evaluation.

    Both return only when the device has finished.
    """
    micro_tokens = training.micro_tokens or training.batch_tokens
    model = Transformer(shape, variant, seed=0, device=device)
    compile_for(model, device)
    optimizers = build_optimizers(model, training)
    tokens_bs = _random_tokens(variant, training.sequences, training.context)

    def step() -> None:
        backward(model, tokens_bs, micro_tokens)
        float(update(optimizers, model, 0.0, training.clip))

    return step, lambda: evaluate(model, torch.from_numpy(tokens_bs), micro_tokens)


def _random_tokens(variant: Variant, sequences: int, context: int) -> np.ndarray:
    return np.random.default_rng(0).integers(variant.vocab, size=(sequences, context + 1))


def _timed(action: Callable[[], object]) -> float:
    """Return the median seconds of several calls, after one call to warm up.

    The action must return only when the device has finished.
    """
    action()
    seconds: list[float] = []
    while len(seconds) < MIN_ROUND_STEPS or (len(seconds) < MAX_ROUND_STEPS and sum(seconds) < ROUND_SECONDS):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
