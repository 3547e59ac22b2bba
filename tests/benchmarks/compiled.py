"""What compiling costs and changes, by the compiler's code for the CPU: losses, and processor time.

    python tests/benchmarks/compiled.py

A model of one layer trains three steps, grows to two layers, trains three more, and is evaluated: eagerly
and compiled, in float32 and with products in bfloat16. Two graphs are compiled, whatever the depth.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
from torch._dynamo.utils import counters

from nasgrow import fused
from nasgrow.config import TrainingConfig
from nasgrow.expansions import InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.shape import Shape, Variant
from nasgrow.training import step
from nasgrow.training.compiling import compile_layers, eagerly
from nasgrow.training.optimizers import build_optimizers

VARIANT = Variant(vocab=32, context=8, activation="gelu", positions="rope", final_norm=True)
SHAPE = Shape.uniform(hidden=16, layers=1, mlp=32, heads=2, key=8, value=8)
TRAINING = TrainingConfig(context=8, batch_tokens=32)


def losses(compiled: bool) -> list[float]:
    """The losses of the steps, and that of the evaluation."""
    random = np.random.default_rng(0)
    batches = [random.integers(VARIANT.vocab, size=(4, VARIANT.context + 1)) for _ in range(6)]
    model = Transformer(SHAPE, VARIANT, seed=1)
    optimizers = build_optimizers(model, TRAINING)
    found = []
    for number, tokens_bs in enumerate(batches):
        if number == 3:
            with eagerly(model):
                grow(model, optimizers, [InsertLayers((1,))], seed=0)
        if compiled:
            compile_layers(model)
        found.append(float(step.backward(model, tokens_bs, TRAINING.batch_tokens)))
        step.update(optimizers, model, 1e-2, TRAINING.clip)
    found.append(step.evaluate(model, torch.from_numpy(batches[0]), TRAINING.batch_tokens))
    return found


def spent() -> float:
    """Processor seconds of this process and of the compilers that it started."""
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in of)


def main() -> None:
    """Print the largest difference and the cost of compiling, cold."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        vars(fused)["applies"] = lambda x: (
            False
        )  # what is computed by hand on the CPU is not compiled on a GPU
        for dtype in (torch.float32, torch.bfloat16):
            vars(step)["compute_dtype"] = lambda device, dtype=dtype: dtype
            counters.clear()
            eager, before = losses(False), spent()
            compiled = losses(True)
            gap = max(abs(one - other) for one, other in zip(eager, compiled, strict=True))
            graphs, breaks = counters["frames"]["ok"], sum(counters["graph_break"].values())
            print(
                f"{dtype}: {graphs} graphs, {breaks} graph breaks, {spent() - before:.1f} s of processor; "
                f"losses within {gap:.1e} of eager ones"
            )


if __name__ == "__main__":
    main()
