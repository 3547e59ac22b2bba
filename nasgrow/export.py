"""A trained model as files that need no run: ``model.safetensors``, ``shape.json`` and ``tokenizer.json``."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from nasgrow.growth.masks import settle
from nasgrow.model import Transformer
from nasgrow.params import table
from nasgrow.schedule import shape_from, shape_to
from nasgrow.shape import Variant
from nasgrow.training import checkpoint
from nasgrow.training.files import write_atomically, write_text
from nasgrow.training.folder import read_run
from nasgrow.training.records import CHECKPOINTS, RESULT, TOKENIZER
from nasgrow.training.state import TrainState
from nasgrow.training.tensors import write_tensors

MODEL, SHAPE = "model.safetensors", "shape.json"


def trained(folder: Path, device: torch.device | str = "cpu") -> TrainState:
    """The state of a run's newest checkpoint, to be looked at: what still opens is as far open as it was."""
    warnings: list[str] = []
    run = read_run(folder)
    state = checkpoint.load(folder / CHECKPOINTS, run, warnings.append, device)
    if state is None:
        reason = f" ({warnings[0]})" if warnings else ""
        raise ValueError(f"{folder}: has no checkpoint that can be used{reason}; train it first")
    settle(state.model, state.masks, run.stages[state.stage].charged(state.step) / run.budget)
    state.masks = []
    return state


def export(folder: Path, to: Path) -> tuple[int, bool]:
    """Write the model of a run, and what it needs to be used, into the folder ``to``.

    Returns:
        The step after which the model was saved, and whether the run has ended.
    """
    _check_place(to)
    state = trained(folder)
    model = state.model
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tokenizer = folder / TOKENIZER
    if not tokenizer.exists():
        raise ValueError(f"{tokenizer}: is missing; without it the model cannot be used")
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{to}: cannot be used: {(error.strerror or str(error)).lower()}") from None
    write_tensors(to / MODEL, tensors)
    write_atomically(to / TOKENIZER, partial(shutil.copyfile, tokenizer))
    described = {
        "shape": shape_to(model.shape),
        "context": model.shape.context,
        "vocab": model.shape.vocab,
        "variant": asdict(model.variant),
    }
    write_text(to / SHAPE, json.dumps(described, indent=2) + "\n")
    return state.step, (folder / RESULT).exists()


def _check_place(to: Path) -> None:
    """Raise ``ValueError`` if there is anything at ``to`` but an exported model, or a part of one."""
    there = {path.name for path in to.iterdir()} if to.is_dir() else set()
    others = sorted(there - {MODEL, SHAPE, TOKENIZER}) or sorted(there if MODEL not in there else ())
    if others:
        raise ValueError(f"{to}: holds what is not an exported model's ({others[0]}); choose another --to")


def load_exported(folder: Path) -> Transformer:
    """The model that :func:`export` wrote; its logits are those of the run's."""
    try:
        described = json.loads((folder / SHAPE).read_text(encoding="utf-8"))
        shape = shape_from(
            described["shape"], "shape", context=described["context"], vocab=described["vocab"]
        )
        variant = Variant(**described["variant"])
        tensors = load_file(folder / MODEL)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"{folder}: is not an exported model: {str(error).splitlines()[0]}") from None
    expected = {name: entry.stored for name, entry in table(shape, variant).items()}
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
        raise ValueError(f"{folder}: the tensors of {MODEL} are not those of {SHAPE}")
    model = Transformer(shape, variant)
    model.install(shape, {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()})
    return model
