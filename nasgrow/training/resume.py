"""Taking up a run where it was left, and counting what was lost on the way."""

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
    """The state that a run's training goes on from: its last checkpoint, or its start.

    Steps that a dead process did after that checkpoint will be done again. The last record that it wrote
    tells what it had executed; what is not in the checkpoint is added to ``lost``. The count is saved before
    those records are cut off, so that the next death neither forgets nor repeats it. A checkpoint whose
    records are damaged is dropped first, so that the records of a run are whole.
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
    """The state of a run's newest checkpoint, to be looked at: what still opens is as far open as it was."""
    warnings: list[str] = []
    run = read_run(folder)
    state = checkpoint.load(folder / CHECKPOINTS, run, warnings.append, device)
    if state is None:
        reason = f" ({warnings[0]})" if warnings else ""
        raise UserError(f"{folder}: has no checkpoint that can be used{reason}; train it first")
    settle(state.model, state.masks, run.stages[state.stage].spent_at(state.step) / run.budget)
    state.masks = []
    return state
