"""``nasgrow grow``: grow a Hugging Face checkpoint without training."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from nasgrow.experiments.transfer import final_shape
from nasgrow.huggingface.offline import grow_checkpoint
from nasgrow.operators import operator_from


def run(source: Path, sizes: str, out: Path, operator: str, dtype: str | None, seed: int) -> int:
    """Grow a checkpoint and print whether it still computes the same function.

    Return the exit code: 1 if it does not, although the operator is exact, else 0.
    """
    chosen = operator_from(operator)
    found = grow_checkpoint(
        source,
        lambda shape: final_shape(sizes, shape, "--to"),
        out,
        operator=chosen,
        dtype=None if dtype is None else getattr(torch, dtype),
        seed=seed,
        told=lambda line: print(line, file=sys.stderr),
    )
    print(f"{out}: {found}")
    return 1 if chosen.preserves == "exact" and not found.same else 0
