"""One step, and one evaluation.

Shape legend: b batch, s sequence, t tokens, v vocabulary.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from nasgrow import fused
from nasgrow.data.store import default_cache
from nasgrow.model import Transformer


def compile_for(model: Transformer, device: torch.device) -> None:
    """Compile on CUDA; on the CPU eager is faster.

    Kernels are kept in the cache's folder by what they compute, so that a shape is compiled once for all
    runs and workers that come to it.
    """
    if device.type == "cuda":
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(default_cache() / "compiled"))
        compile_afresh(model)


def compile_afresh(model: Transformer, backend: str = "inductor") -> None:
    """Compile for the model's sizes as they are, whatever this process has compiled before.

    Left to itself, torch would compile for sizes in general once it has seen two, so that a run's bits would
    depend on which runs its process trained before; and it would stop compiling after a few.
    """
    torch._dynamo.reset()
    model.compile(backend=backend, dynamic=False)


def reduced(device: torch.device) -> bool:
    """Whether losses are computed in bfloat16; weights, gradients and moments are float32 everywhere."""
    return device.type == "cuda"


def _loss(model: Transformer, tokens_bs: Tensor) -> Tensor:
    device = tokens_bs.device
    with torch.autocast(device.type, torch.bfloat16, enabled=reduced(device)):
        logits_tv, targets_t = model(tokens_bs[:, :-1]).flatten(0, 1), tokens_bs[:, 1:].flatten()
        if fused.applies(logits_tv):
            return fused.cross_entropy(logits_tv, targets_t)
        return F.cross_entropy(logits_tv, targets_t)


def backward(model: Transformer, tokens_bs: NDArray[np.int64], micro_tokens: int) -> Tensor:
    """Gradients of the mean loss over a step's sequences; returns that loss."""
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
    """Clip the gradients and step at the learning rate ``rate``; returns the gradients' norm before that."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf if clip is None else clip)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    return norm


@torch.no_grad()
def evaluate(model: Transformer, windows_bs: Tensor, chunk_tokens: int) -> float:
    """The mean loss over the windows."""
    device = model.embedding.device
    chunks = windows_bs.split(max(1, chunk_tokens // (windows_bs.shape[1] - 1)))
    losses = [_loss(model, chunk_bs.to(device)) * len(chunk_bs) for chunk_bs in chunks]
    return float(torch.stack(losses).sum()) / len(windows_bs)


@torch.no_grad()
def logits_and_loss(model: Transformer, windows_bs: Tensor, chunk_tokens: int) -> tuple[Tensor, float]:
    """The logits of the first window, and the mean loss over all."""
    first_bs = windows_bs[:1, :-1].to(model.embedding.device)
    return model(first_bs), evaluate(model, windows_bs, chunk_tokens)
