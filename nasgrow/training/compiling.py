"""Compilation: one graph for each kind of layer and one for the loss, whatever the depth of the model.

A graph is compiled once in a process and kept for all later stages and runs; its kernels are kept
on disk, so that other workers find them. Training and evaluation share their graphs. What happens
once at an event (checks, growing, learning operators) runs eagerly, since compiling it would cost
more than it saves.

Shape legend: b batch, s sequence, t = b * s tokens, h hidden, v vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from nasgrow import fused
from nasgrow.data.store import default_cache
from nasgrow.model import Transformer

GRAPHS = 1024
"""The most graphs of one function in a process; beyond that, torch runs the function eagerly."""

Backend = str | Callable[..., Any]


def compile_for(model: Transformer, device: torch.device) -> None:
    """Mark a model for compilation if the device is a GPU; on the CPU, eager execution is faster.

    Kernels are kept in the folder that ``TORCHINDUCTOR_CACHE_DIR`` names. If this variable is not
    set, it is set to a folder in nasgrow's cache.
    """
    if device.type == "cuda":
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(default_cache() / "compiled"))
        compile_layers(model)


def compile_layers(model: Transformer, backend: Backend = "inductor") -> None:
    """Mark every layer and the loss for compilation at their next call.

    Each graph is for fixed sizes. By default, torch would compile for variable sizes once it has
    seen two. Then a run's bits would depend on the runs that its process trained before. Torch's
    limits on the number of graphs are set to :data:`GRAPHS` for the whole process.
    """
    from torch.compiler import config

    config.recompile_limit = config.accumulated_recompile_limit = GRAPHS
    for layer in model.layers:
        layer.compile(**_options(backend))
    model.backend = backend


def eagerly(model: Transformer) -> AbstractContextManager[None]:
    """Return a context manager in which a compiled model runs eagerly."""
    if model.backend is None:
        return nullcontext()  # without importing the compiler
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


def mean_loss(model: Transformer, tokens_bs: Tensor) -> Tensor:
    """Return the mean loss of predicting every token of each sequence except the first.

    It runs as a compiled graph if :func:`compile_layers` has marked the model.
    """
    of_stream = _stream_loss if model.backend is None else _compiled_loss(model.backend)
    return of_stream(model, model.residual(tokens_bs[:, :-1]), tokens_bs[:, 1:].flatten())


def _stream_loss(model: Transformer, x_th: Tensor, targets_t: Tensor) -> Tensor:
    """Return the mean loss, given the residual stream after the last layer.

    Logits and loss are in one graph, so that the logits need not be stored in full precision.
    """
    logits_tv = model.logits(x_th)
    if fused.applies(logits_tv):
        return fused.cross_entropy(logits_tv, targets_t)
    return F.cross_entropy(logits_tv, targets_t)


@cache
def _compiled_loss(backend: Backend) -> Callable[[Transformer, Tensor, Tensor], Tensor]:
    return torch.compile(_stream_loss, **_options(backend))


def _options(backend: Backend) -> dict[str, Any]:
    """Return the options of ``torch.compile``. The deterministic mode picks no kernels by timing."""
    common = {"backend": backend, "dynamic": False}
    return {**common, "options": {"deterministic": True}} if backend == "inductor" else common
