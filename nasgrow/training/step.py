"""Compute one training step, and one evaluation.

Shape legend: b batch, s sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from nasgrow.model import Transformer
from nasgrow.training.compiling import eagerly, mean_loss
from nasgrow.training.device import compute_dtype


def _loss(model: Transformer, tokens_bs: Tensor) -> Tensor:
    device = tokens_bs.device
    reduced = compute_dtype(device) != torch.float32
    with torch.autocast(device.type, torch.bfloat16, enabled=reduced):
        return mean_loss(model, tokens_bs)


def backward(model: Transformer, tokens_bs: NDArray[np.int64], micro_tokens: int) -> Tensor:
    """Set the model's gradients to those of the mean loss over a step's batch; return the loss.

    Gradients are accumulated over micro-batches. The returned loss is detached and stays on the
    model's device, so that the CPU does not wait for it.

    Args:
        model: The model.
        tokens_bs: The batch: sequences of context + 1 tokens.
        micro_tokens: Tokens of one forward pass. All micro-batches must have the same size.
    """
    model.zero_grad()
    device = model.embedding.device
    step_bs = torch.from_numpy(tokens_bs)
    if device.type == "cuda":
        step_bs = step_bs.pin_memory()  # else copying would wait for the device
    parts = step_bs.split(micro_tokens // (tokens_bs.shape[1] - 1))
    total = torch.zeros((), device=device)
    for part_bs in parts:
        loss = _loss(model, part_bs.to(device, non_blocking=True)) / len(parts)
        loss.backward()
        total += loss.detach()
    return total


def update(optimizers: Sequence[Optimizer], model: Transformer, rate: float, clip: float | None) -> Tensor:
    """Clip the gradients and step at the learning rate ``rate``; return the norm before clipping.

    Every parameter group gets the same rate. The norm is that of all gradients together, and stays
    on the model's device. ``clip`` is the largest norm; None for no clipping. The gradients stay
    until :func:`backward` sets them anew.
    """
    largest = math.inf if clip is None else clip
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), largest, foreach=True)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    return norm


def evaluate(
    model: Transformer, windows_bs: Tensor, chunk_tokens: int, *, compiled: bool | None = None
) -> float:
    """Return the mean loss per token over windows of text, in nats.

    Windows go through the model in chunks. In a compiled model, full chunks reuse the graphs that
    training compiled. Those graphs were made with gradients enabled, so gradients stay enabled
    here. A smaller last chunk runs eagerly, because it would need another compilation.

    Args:
        model: The model.
        windows_bs: The windows, each of context + 1 tokens.
        chunk_tokens: Tokens of one forward pass.
        compiled: Whether to use compiled graphs; by default if the model is compiled.
    """
    compiled = model.backend is not None if compiled is None else compiled
    device, full = model.embedding.device, max(1, chunk_tokens // (windows_bs.shape[1] - 1))
    losses = []
    for chunk_bs in windows_bs.split(full):
        graphs = compiled and len(chunk_bs) == full
        with torch.set_grad_enabled(graphs), nullcontext() if graphs else eagerly(model):
            losses.append(_loss(model, chunk_bs.to(device)).detach() * len(chunk_bs))
    return float(torch.stack(losses).sum()) / len(windows_bs)


@torch.no_grad()
def logits_and_loss(model: Transformer, windows_bs: Tensor, chunk_tokens: int) -> tuple[Tensor, float]:
    """Return the logits of the first window, and the mean loss over all windows.

    The model runs eagerly: this is called only at events, where compiling would cost more than it
    saves.
    """
    first_bs = windows_bs[:1, :-1].to(model.embedding.device)
    with eagerly(model):
        return model(first_bs), evaluate(model, windows_bs, chunk_tokens, compiled=False)
