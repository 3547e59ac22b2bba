"""Test whether training on a device gives the same bits twice, before runs share prefixes there.

On the CPU it does, and tests check that. On a GPU it depends on the kernels that libraries choose: they may
use atomic additions, or algorithms picked by timing. So each process trains a few steps with an event twice
and compares the results. It also compares them with a file from the first process on the same kind of
machine, because it will share runs with that process.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from nasgrow.config import LONGEST_RAMP, TrainingConfig
from nasgrow.expansions import diff
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.shape import Shape, Variant
from nasgrow.training.atomic_files import to_json, write_text
from nasgrow.training.compiling import compile_for, eagerly
from nasgrow.training.machine import numerics
from nasgrow.training.optimizers import build_optimizers
from nasgrow.training.run import Run
from nasgrow.training.step import backward, evaluate, update

CHECK_STEPS = 10
"""The steps of each of the two trainings; half of them are before the event."""

BITS_FOLDER = ".bits"
"""The folder in a prefix cache that holds the results of the first processes."""


def repeats(run: Run, device: torch.device, cache_folder: Path) -> bool:
    """Return whether runs like this one give the same bits twice, and the same as in other processes.

    The other processes are those that use the same prefix cache on the same kind of machine. The
    first of them writes a hash of its bits into ``cache_folder``, the folder of that cache. A
    process makes this test once for all runs with the same start and final shape, variant,
    optimizer, context and sizes of batches and micro-batches.
    """
    training = run.config.training
    ramp = training.ramp if training.in_ramp is not None else None
    like = TrainingConfig(  # what else runs of a study differ in changes no kernel
        context=training.context,
        batch_tokens=training.batch_tokens,
        micro_tokens=training.micro_tokens,
        ramp=ramp and ramp.model_copy(update={"until": LONGEST_RAMP}),  # tuning tries many ends
        optimizer=training.optimizer,
    )
    schedule = run.schedule
    return _repeats(schedule.start, schedule.final, run.variant, like, device, cache_folder)


@cache
def _repeats(
    start: Shape,
    final: Shape,
    variant: Variant,
    training: TrainingConfig,
    device: torch.device,
    cache_folder: Path,
) -> bool:
    first, second = (digest(start, final, variant, training, device) for _ in range(2))
    if first != second:
        return False
    about = {
        "environment": numerics(device),
        "start": str(start),
        "final": str(final),
        "variant": variant.described(),
        "training": training.model_dump(mode="json"),
    }
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    path = cache_folder / BITS_FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            write_text(path, to_json({**about, "digest": first}, indent=2) + "\n")
    return bool(json.loads(path.read_text(encoding="utf-8"))["digest"] == first)


def digest(
    start: Shape, final: Shape, variant: Variant, training: TrainingConfig, device: torch.device
) -> str:
    """Train some steps on random tokens; return a hash of the exact bits of the losses and final weights.

    Halfway, the model grows from ``start`` to ``final`` in one event.
    """
    micro_tokens = training.micro_tokens or training.batch_tokens
    kinds = training.kinds
    random = np.random.default_rng(0)
    model = Transformer(start, variant, seed=0, device=device)
    optimizers = build_optimizers(model, training)
    found = hashlib.sha256()
    for step in range(CHECK_STEPS):
        if step == CHECK_STEPS // 2:
            with eagerly(model):
                grow(model, optimizers, diff(start, final), seed=0)
        if step in (0, CHECK_STEPS // 2):
            for parameter in model.parameters():  # closed layers would hide what their insides compute
                with torch.no_grad():
                    values = random.uniform(-0.05, 0.05, parameter.shape).astype(np.float32)
                    parameter.add_(torch.from_numpy(values).to(device))
            compile_for(model, device)
        kind = kinds[step % len(kinds)]
        tokens_bs = random.integers(variant.vocab, size=(kind.sequences, kind.context + 1))
        loss = backward(model, tokens_bs, kind.micro_tokens or kind.batch_tokens)
        update(optimizers, model, 1e-3, training.clip)
        found.update(loss.cpu().numpy().tobytes())
    found.update(np.float64(evaluate(model, torch.from_numpy(tokens_bs), micro_tokens)).tobytes())
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().numpy().tobytes())
    return found.hexdigest()
