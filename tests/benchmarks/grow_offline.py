"""Peak memory of ``nasgrow grow``: a checkpoint of 1B random parameters, grown to 2B.

    python -m tests.benchmarks.grow_offline [FOLDER]

Writes about 15 GB under FOLDER (a temporary folder by default), and removes them. The checkpoint is written
tensor by tensor, growth runs in a process of its own, and its peak is what the kernel says of that process.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from nasgrow.flops import parameter_count
from nasgrow.huggingface.checkpoint import Checkpoint, new_folder, write_checkpoint
from nasgrow.params import TensorSpec
from nasgrow.shape import Shape, Variant

SHAPE = Shape.uniform(hidden=2048, layers=16, mlp=8192, heads=8, key=64, value=64)
VARIANT = Variant(49_152, 2048, "silu", True, True, "rope", True, queries=4, epsilon=2048e-5, biases=False)
SIZES = "hidden=2560,layers=22,mlp=10240"


def write(folder: Path) -> None:
    """A random checkpoint in bfloat16."""

    def values(entry: TensorSpec) -> torch.Tensor:
        return 0.02 * torch.randn(entry.stored) if entry.row.start is None else torch.ones(entry.stored)

    with new_folder(folder) as beside:
        write_checkpoint(beside, SHAPE, VARIANT, values, torch.bfloat16)


def main() -> None:
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=given) as name:
        folder = Path(name)
        write(folder / "old")
        command = ["grow", "--from", str(folder / "old"), "--to", SIZES, "--out", str(folder / "new")]
        subprocess.run([sys.executable, "-m", "nasgrow", *command], check=True)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        for one in ("old", "new"):
            layout = Checkpoint(folder / one).layout
            print(f"{one}: {parameter_count(layout.shape, layout.variant):,} parameters, {layout.shape}")
        seconds = usage.ru_utime + usage.ru_stime
        print(f"peak memory {usage.ru_maxrss / 1e6:.2f} GB, {seconds:.0f} s of processor time")


if __name__ == "__main__":
    main()
