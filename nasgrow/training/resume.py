"""Resume a run from its last checkpoint, and count the FLOPs that were lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from nasgrow.errors import UserError
from nasgrow.growth.masks import settle
from nasgrow.training import checkpoint
from nasgrow.training.atomic_files import sweep
from nasgrow.training.records import CHECKPOINTS, METRICS, cut_records, last_beyond, read_run, whole_bytes
from nasgrow.training.run import Run
from nasgrow.training.start import first_state
from nasgrow.training.state import TrainState


def resume(folder: Path, run: Run, warn: Callable[[str], None], device: torch.device) -> TrainState:
    """Return the state from which a run continues: its last checkpoint, or its start.

    Steps that a dead process did after that checkpoint are repeated. The last record of that
    process shows the FLOPs that it had executed; those after the checkpoint are added to the
    state's ``lost``. The sum is saved in a new checkpoint before the records are cut off, so that
    it is counted exactly once even if this process dies too. Checkpoints whose records are damaged
    are deleted first, so that the records of a run have no gaps.

    Args:
        folder: The run's folder.
        run: The run.
        warn: Called about each checkpoint that is invalid or deleted.
        device: The device of the state.

    Raises:
        UserError: A file cannot be written, or the Hugging Face checkpoint to start from has
            changed.
    """
    saved, metrics = folder / CHECKPOINTS, folder / METRICS
    sweep(saved)
    checkpoint.drop_beyond(saved, whole_bytes(metrics), warn)
    state = checkpoint.load(saved, run, warn, device) or first_state(run, device)
    last = last_beyond(metrics, state.records)
    if last is not None:
        state.lost += last["executed"] - state.executed(run.stages[state.stage].charged(state.step))
        state.seconds = max(state.seconds, last["seconds"])
        checkpoint.save(saved, run, state)
        cut_records(metrics, state.records)
    return state


def trained(folder: Path, device: torch.device | str = "cpu") -> TrainState:
    """Return the state of a run's newest checkpoint, for evaluation and not for training.

    Masks that were still opening are multiplied into the weights.

    Raises:
        UserError: The folder is not that of a run, or it has no valid checkpoint.
    """
    warnings: list[str] = []
    run = read_run(folder)
    state = checkpoint.load(folder / CHECKPOINTS, run, warnings.append, device)
    if state is None:
        reason = f" ({warnings[0]})" if warnings else ""
        raise UserError(f"{folder}: has no checkpoint that can be used{reason}; train it first")
    settle(state.model, state.masks, run.stages[state.stage].spent_at(state.step) / run.budget)
    state.masks = []
    return state
