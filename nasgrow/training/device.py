"""What a run computes on: the device, the precision of its products, and whether bits can repeat."""

from __future__ import annotations

import os
import warnings
from functools import cache

import torch


def gpu_count() -> int:
    """The number of GPUs that torch can use."""
    return torch.cuda.device_count()


def pick_device() -> torch.device:
    """The GPU, if this process sees one, ready for training; else the CPU.

    An executor lets each of its workers see one GPU alone, which is then ``cuda:0``.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", 0)
    prepare_gpu()
    if compute_dtype(device) == torch.float32:
        warnings.warn(
            f"{torch.cuda.get_device_name(device)} does not compute in bfloat16: runs train in float32, "
            "which is several times slower; float16 would need scaled losses, and is not offered",
            stacklevel=2,
        )
    return device


def prepare_gpu() -> None:
    """Choose kernels that give the same bits every time, before the first of them runs.

    Strictly: where torch only warns, attention's backward pass stays the one that adds in any order. An
    operation that has no such kernel raises an error. Whether bits do repeat is measured: see ``repeats``.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.enable_cudnn_sdp(False)


@cache
def compute_dtype(device: torch.device) -> torch.dtype:
    """The precision of matrix products; weights, gradients and moments are float32 everywhere.

    On a GPU bfloat16, if it computes in it rather than emulating it. Products that stay in float32 are not
    rounded to TF32 on the way.
    """
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float32
