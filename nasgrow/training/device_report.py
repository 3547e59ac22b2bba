"""Measure how fast this machine's device is, for ``nasgrow doctor``."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nasgrow.config import TrainingConfig
from nasgrow.flops import step_flops
from nasgrow.shape import Shape, Variant
from nasgrow.training.determinism import digest
from nasgrow.training.device import compute_dtype, gpu_count
from nasgrow.training.machine import matmul_peak
from nasgrow.training.step_timing import device_name, measure_steps

SLOW_SHARE = 0.3
"""On a GPU, products and steps below this share of the peak are reported as slow."""


@dataclass(frozen=True)
class Pace:
    """The speed of an operation: FLOPs per second, and their share of those of a large product."""

    what: str
    flops_per_second: float
    peak_share: float


@dataclass(frozen=True)
class Examination:
    """The result of :func:`examine`.

    Attributes:
        device: The device in words.
        gpus: The number of GPUs that this process sees.
        torch: The version of torch.
        gigabytes: The GPU's memory; None on the CPU.
        compute: The dtype of products, such as ``bfloat16``.
        tf32: Whether products in float32 are rounded to TF32.
        compiles: Whether models are compiled on this device.
        peak: FLOPs per second of a large product.
        products: The pace of products by size.
        steps: The pace of training steps by shape.
        repeats: Whether ten steps, with an event among them, gave the same bits twice.
        slow: Problems that make training slow or impossible, and what to do about them.
    """

    device: str
    gpus: int
    torch: str
    gigabytes: float | None
    compute: str
    tf32: bool
    compiles: bool
    peak: float
    products: tuple[Pace, ...]
    steps: tuple[Pace, ...]
    repeats: bool
    slow: tuple[str, ...]


def examine(device: torch.device) -> Examination:
    """Measure a device: about a minute on a GPU, most of it compiling; seconds on a CPU."""
    gpu = device.type == "cuda"
    peak = matmul_peak(device)
    sizes = (64, 72, 256, 264, 1024, 4096) if gpu else (64, 256)
    products = tuple(_product(device, size, 16384 if gpu else 2048, peak) for size in sizes)
    variant = Variant(vocab=8192 if gpu else 256, context=256 if gpu else 64)
    training = TrainingConfig(context=variant.context, batch_tokens=16384 if gpu else 1024)
    shapes = [
        Shape.uniform(hidden=h, layers=4, mlp=4 * h, heads=h // 64 or 1, key=min(h, 64), value=min(h, 64))
        for h in ((64, 256, 512) if gpu else (32, 64))
    ]
    seconds = measure_steps([(shape, training) for shape in shapes], variant, device).timings
    steps = tuple(
        _pace(timing.shape, step_flops(shape, variant, training.sequences) / timing.step, peak)
        for shape, timing in zip(shapes, seconds, strict=True)
    )
    repeats = len({digest(shapes[0], shapes[1], variant, training, device) for _ in range(2)}) == 1
    compute = str(compute_dtype(device)).removeprefix("torch.")
    return Examination(
        device=device_name(device),
        gpus=gpu_count(),
        torch=torch.__version__,
        gigabytes=torch.cuda.get_device_properties(device).total_memory / 1e9 if gpu else None,
        compute=compute,
        tf32=torch.get_float32_matmul_precision() != "highest",
        compiles=gpu,
        peak=peak,
        products=products,
        steps=steps,
        repeats=repeats,
        slow=tuple(_slow(gpu, compute, repeats, [*products, *steps])),
    )


def _product(device: torch.device, size: int, tokens: int, peak: float) -> Pace:
    """Measure the pace of a product of activations and a square matrix; the best of five."""
    x = torch.ones(tokens, size, dtype=compute_dtype(device), device=device)
    weight = torch.ones(size, size, dtype=x.dtype, device=device)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        x @ weight
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return _pace(f"{tokens} x {size} by {size} x {size}", 2 * tokens * size**2 / best, peak)


def _pace(what: str, flops_per_second: float, peak: float) -> Pace:
    return Pace(what, flops_per_second, flops_per_second / peak)


def _slow(gpu: bool, compute: str, repeats: bool, paces: Sequence[Pace]) -> list[str]:
    found = []
    if not gpu:
        found.append("no GPU is seen: runs train on the CPU")
    elif compute == "float32":
        found.append("the GPU does not compute in bfloat16: runs train in float32")
    if gpu and not importlib.util.find_spec("triton"):
        found.append("the package triton is missing, which compiling for a GPU needs: pip install triton")
    if gpu and not (shutil.which("gcc") or shutil.which("cc")):
        found.append("no C compiler is found, which triton needs: install gcc")
    if not repeats:
        found.append("ten steps did not give the same bits twice: runs share no prefixes on this device")
    for pace in paces:
        if gpu and pace.peak_share < SLOW_SHARE:
            found.append(f"{pace.what}: {pace.peak_share:.0%} of the peak")
    return found
