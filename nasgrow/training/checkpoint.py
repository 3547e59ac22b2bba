"""Checkpoints: the full state of a run between two steps, on disk.

A checkpoint is two files: ``step-N.safetensors`` with every tensor, and ``step-N.json`` with the rest and the
hash of the first. Each is written beside its place and renamed, the JSON last: a checkpoint without it does
not exist. Two are kept, so that a damaged one costs some steps and not the run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nasgrow.adam_ages import AGES, Ages
from nasgrow.errors import UserError
from nasgrow.growth.masks import Mask
from nasgrow.training.atomic_files import write_text
from nasgrow.training.records import checkpoint_steps
from nasgrow.training.run import Run
from nasgrow.training.soundness import check_fields, check_tensors
from nasgrow.training.state import TrainState
from nasgrow.training.tensors import write_tensors

CHECKPOINT_FORMAT = 3
KEPT = 2
_PLAIN = (
    "step",
    "stage",
    "seconds",
    "first_loss",
    "loss_count",
    "step_seconds",
    "step_flops",
    "records",
    "evaluated",
    "lost",
    "reused",
)


def save(folder: Path, run: Run, state: TrainState) -> None:
    """Write a checkpoint into a folder, and keep only it and the newest before it, ``KEPT`` in all.

    Those of later steps are deleted: they are invalid, or the run would have resumed from them.

    Raises:
        UserError: A file of the checkpoint cannot be written.
        OSError: The folder cannot be created, or an older checkpoint cannot be deleted.
    """
    tensors, meta = pack(run.identity, state)
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"step-{state.step}"
    write_tensors(stem.with_suffix(".safetensors"), tensors)
    meta["sha256"] = _sha256(stem.with_suffix(".safetensors"))
    write_text(stem.with_suffix(".json"), json.dumps(meta))
    until = [step for step in checkpoint_steps(folder) if step <= state.step]
    kept = {f"step-{step}" for step in until[:KEPT]}
    for path in folder.glob("step-*"):
        if path.stem not in kept:
            path.unlink(missing_ok=True)


def pack(owner: str, state: TrainState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a state as tensors by name, and the rest of it as plain data.

    The tensors share their memory with the state. ``owner`` identifies what the state belongs to: a
    run, or the key of a cached prefix.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in state.model.named_parameters()}
    tensors = {f"model/{name}": parameter.detach() for parameter, name in names.items()}
    tensors["loss_sum"] = state.loss_sum
    plain: dict[str, Any] = {}
    for number, optimizer in enumerate(state.optimizers):
        for parameter, entries in optimizer.state.items():
            for key, value in entries.items():
                place = f"optimizer/{number}/{names[parameter]}/{key}"
                if isinstance(value, Tensor):
                    tensors[place] = value
                else:
                    plain[place] = asdict(value) if key == AGES else value
    plain_state = {name: getattr(state, name) for name in _PLAIN}
    meta = {
        "format": CHECKPOINT_FORMAT,
        "run": owner,
        "state": plain_state,
        "optimizers": plain,
        "masks": state.masks,
        "warming": state.warming,
    }
    return tensors, meta


def load(
    folder: Path, run: Run, warn: Callable[[str], None], device: torch.device | str = "cpu"
) -> TrainState | None:
    """Load the newest valid checkpoint of a run; None if there is none.

    ``warn`` is called about each invalid one that is newer.
    """
    for step in checkpoint_steps(folder):
        stem = folder / f"step-{step}"
        try:
            return _load(stem, run, device)
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
            SafetensorError,
        ) as error:
            # Errors of valid checkpoints are not caught: lack of memory must not make a run start again.
            warn(f"{stem}.json: passed over: {str(error).splitlines()[0] if str(error) else 'damaged'}")
    return None


def drop_beyond(folder: Path, records: int, warn: Callable[[str], None]) -> None:
    """Delete the checkpoints that need more than ``records`` valid bytes of the metrics file.

    ``warn`` is called about each of them.
    """
    for step in checkpoint_steps(folder):
        stem = folder / f"step-{step}"
        try:
            counted = int(json.loads(stem.with_suffix(".json").read_bytes())["state"]["records"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue  # load() warns about it
        if counted > records:
            warn(f"{stem}.json: dropped: records from before it are damaged")
            for suffix in (".json", ".safetensors"):
                stem.with_suffix(suffix).unlink(missing_ok=True)


def _load(stem: Path, run: Run, device: torch.device | str) -> TrainState:
    meta = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    path = stem.with_suffix(".safetensors")
    if _sha256(path) != meta["sha256"]:
        raise UserError(f"{path.name} is damaged")
    return unpack(run.identity, load_file(path, device=str(device)), meta, run, device)


def unpack(
    owner: str, tensors: dict[str, Tensor], meta: dict[str, Any], run: Run, device: torch.device | str
) -> TrainState:
    """Return the state that :func:`pack` packed, for a run that has the same shape at that stage.

    The model's tensors are copied. The state keeps the others, which must be on ``device``.

    Raises:
        UserError: The state has another format, owner or shape, or training cannot continue from it.
        AttributeError, LookupError, TypeError, ValueError: The data is not a state.
    """
    if meta["format"] != CHECKPOINT_FORMAT:
        raise UserError(f"its format is {meta['format']!r}, not {CHECKPOINT_FORMAT}")
    if meta["run"] != owner:
        raise UserError(f"it belongs to run {meta['run']}, not {owner}")
    check_fields(meta["state"], run)
    state = TrainState.fresh(run, meta["state"]["stage"], device)
    for name in _PLAIN:
        setattr(state, name, meta["state"][name])
    for kind, masks in (("masks", state.masks), ("warming", state.warming)):
        listed = meta.get(kind, [])  # older checkpoints lack these fields
        if not isinstance(listed, list):
            raise UserError(f"its {kind} are no list")
        for mask_name, box, *times in listed:
            masks.append(Mask(mask_name, tuple((start, stop) for start, stop in box), *times))
    check_tensors(state, run, tensors, meta["optimizers"])
    state.loss_sum = tensors["loss_sum"]
    parameters = dict(state.model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"model/{name}"])
    for place, value in {**tensors, **meta["optimizers"]}.items():
        if place.startswith("optimizer/"):
            _, number, name, key = place.split("/")
            entries = state.optimizers[int(number)].state[parameters[name]]
            entries[key] = Ages(**value) if key == AGES else value
    return state


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
