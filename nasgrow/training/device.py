"""Choose the device of a run, the precision of matrix products, and deterministic kernels."""

from __future__ import annotations

import os
import warnings
from functools import cache

import torch


def gpu_count() -> int:
    """Return the number of GPUs that torch can use."""
    return torch.cuda.device_count()


def pick_device() -> torch.device:
    """Return the GPU, prepared for training, if this process sees one; else the CPU.

    An executor lets each worker see only one GPU, which is then ``cuda:0``. Warn if it does not
    compute in bfloat16.
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
    """Make torch choose kernels that give the same bits every time, in this whole process.

    It must be called before the first kernel runs.

    An operation without such a kernel raises an error. A warning would not be enough: with it,
    torch keeps the backward pass of attention that adds in any order. The attention of cuDNN is
    switched off. :func:`nasgrow.training.determinism.repeats` tests whether bits do repeat.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.enable_cudnn_sdp(False)


@cache
def compute_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products; weights, gradients and moments are always float32.

    It is bfloat16 on a GPU that supports it without emulation, else float32. Products in float32 are not
    rounded to TF32.
    """
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float32
