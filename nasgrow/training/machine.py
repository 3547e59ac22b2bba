"""Describe the machine that a run trains on, and measure how fast it multiplies matrices."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nasgrow.training.device import compute_dtype

NUMERICS = 5
"""A version number; raise it with every change after which the same run gives other bits or records."""


@cache
def matmul_peak(device: torch.device) -> float:
    """Measure the FLOPs per second of a large matrix product in the dtype of training.

    The best of six counts. A process measures each device once.
    """
    size = 8192 if device.type == "cuda" else 1024
    a = torch.ones(size, size, dtype=compute_dtype(device), device=device)
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def numerics(device: torch.device) -> dict[str, Any]:
    """Return the hardware and software that the exact bits of a result may depend on."""
    return {
        "nasgrow": NUMERICS,
        "versions": {name: _version(name) for name in ("torch", "numpy")},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()),
        "precision": torch.get_float32_matmul_precision(),
        "system": f"{platform.system()} {platform.machine()}",
        **(_gpu_numerics(device) if device.type == "cuda" else {}),
    }


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Describe the hardware and software for a record, without anything that names a person or a place."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {
            name: _version(name) for name in ("nasgrow", "torch", "numpy", "datasets", "tokenizers")
        },
        "commit": _commit(),
        **(_gpu_numerics(device) if device.type == "cuda" else {}),
    }


def _gpu_numerics(device: torch.device) -> dict[str, Any]:
    return {
        "compute": str(compute_dtype(device)).removeprefix("torch."),
        "tf32": torch.get_float32_matmul_precision() != "highest",
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "compiled": "blocks",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the git checkout that this code runs from, or None outside a checkout.

    It ends in ``-dirty`` if files of the package have changed since. Other files, such as reports
    and notes, change no run. None too if git fails.
    """
    package = Path(__file__).parents[1]
    if not (package.parent / ".git").exists():
        return None
    try:
        commit = _git(package, "describe", "--always", "--abbrev=12")
        changed = _git(package, "status", "--porcelain", "--untracked-files=no", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    found = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10
    )
    return found.stdout.strip()
