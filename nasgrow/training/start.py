"""The state before a run's first step: a fresh model, or a Hugging Face checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from nasgrow.config import CheckpointStart
from nasgrow.errors import UserError
from nasgrow.growth import grow
from nasgrow.huggingface.checkpoint import Checkpoint
from nasgrow.huggingface.start import checkpoint_hash
from nasgrow.model import Transformer
from nasgrow.training.optimizers import build_optimizers
from nasgrow.training.run import Run
from nasgrow.training.state import TrainState


def first_state(run: Run, device: torch.device) -> TrainState:
    """Return the state before the first step.

    A checkpoint is grown at once to the shape that the run starts at. It brings no optimizer state: moments
    start at zero, and the learning rate warms up as in any run.

    Raises:
        UserError: The checkpoint cannot be read, or is not the one that the run describes.
    """
    start = run.config.start
    if start is None:
        return TrainState.fresh(run, device=device)
    model = _read(start, run)
    grow(model, None, run.grown_at_once, seed=run.growth_seed(-1), operator=run.config.training.operator)
    model = model.to(device)
    optimizers = build_optimizers(model, run.config.training)
    return TrainState(model, optimizers, loss_sum=torch.zeros((), device=device))


def _read(start: CheckpointStart, run: Run) -> Transformer:
    """Read the model of a checkpoint, in float32.

    Raises:
        UserError: The checkpoint has changed, or the run has another variant.
    """
    folder = Path(start.folder)
    if (found := checkpoint_hash(folder)) != start.hash:
        raise UserError(
            f"start.from: {start.folder!r} has changed since the run was described (hash {start.hash[:12]} "
            f"became {found[:12]})"
        )
    checkpoint = Checkpoint(folder, run.variant.context)
    assert checkpoint.layout.shape == start.shape, folder
    if checkpoint.layout.variant != run.variant:
        raise UserError(f"variant: must be that of {start.folder!r}: leave it out")
    return checkpoint.model().float()
