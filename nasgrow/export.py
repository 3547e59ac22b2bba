"""Export the trained model of a run to files that can be used without the run.

Our format is ``model.safetensors``, ``shape.json`` and ``tokenizer.json``. The other format is a Hugging Face
checkpoint, which ``AutoModelForCausalLM`` and ``AutoTokenizer`` load.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from nasgrow.data.tokenizers import open_saved
from nasgrow.errors import UserError
from nasgrow.flops import parameter_count
from nasgrow.huggingface.card import CARD, card
from nasgrow.huggingface.checkpoint import Checkpoint, is_checkpoint, new_folder, write_checkpoint
from nasgrow.huggingface.tokenizer import saved_tokens, write_tokenizer
from nasgrow.model import Transformer, model_with
from nasgrow.params import table
from nasgrow.schedule import in_lines, shape_from, shape_to
from nasgrow.shape import Shape, Variant
from nasgrow.strict import read_json, with_prefix
from nasgrow.training.atomic_files import write_atomically, write_text
from nasgrow.training.records import RESULT, TOKENIZER, Result, read_result, read_run
from nasgrow.training.resume import trained
from nasgrow.training.run import Run
from nasgrow.training.runner import read_test_loss
from nasgrow.training.tensors import write_tensors

MODEL, SHAPE_FILE = "model.safetensors", "shape.json"

FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
"""The dtypes that an exported model may have."""


def export(folder: Path, to: Path) -> tuple[int, bool]:
    """Write the model of a run, with its shape and tokenizer, into the folder ``to``.

    Returns:
        The step after which the model was saved, and whether the run has ended.

    Raises:
        UserError: The run has no checkpoint or tokenizer, or ``to`` holds anything but an earlier
            export, which is overwritten.
    """
    state, tokenizer = trained(folder), _tokenizer(folder)
    _write(to, state.model, partial(shutil.copyfile, tokenizer))
    return state.step, (folder / RESULT).exists()


def export_checkpoint(folder: Path, to: Path) -> tuple[int, bool]:
    """Write the model of a run as a Hugging Face checkpoint into the new folder ``to``.

    Returns:
        The step after which the model was saved, and whether the run has ended.

    Raises:
        UserError: No model of ``transformers`` computes this function; the message names the field.
            Or the run has no checkpoint or tokenizer, or ``to`` exists and is not empty.
    """
    state, tokenizer, run = trained(folder), _tokenizer(folder), read_run(folder)
    model, context = state.model, state.model.variant.context
    ended = (folder / RESULT).exists()
    with new_folder(to) as beside:
        write_checkpoint(
            beside,
            model.shape,
            model.variant,
            lambda entry: model.get_parameter(entry.name),
            model.embedding.dtype,
            more=write_tokenizer(beside, tokenizer, context),
        )
        facts = _facts(run, state.step, read_result(folder) if ended else None)
        if (test := read_test_loss(folder)) is not None:
            facts["test loss"] = f"{test:.4f} nats per token"
        base = None if run.config.start is None else Path(run.config.start.folder).name
        begun = [] if base is None else [f"started from the weights of {base}"]
        made = [*begun, *in_lines(run.schedule), f"{run.budget:.3g} training FLOPs in all"]
        text = card(f"{folder.name}, grown by nasgrow", facts, made, base=base)
        (beside / CARD).write_text(text, encoding="utf-8")
    return state.step, ended


def _facts(run: Run, step: int, result: Result | None) -> dict[str, str]:
    """Return the facts for a run's model card; ``result`` is None if the run has not ended."""
    training, data = run.config.training, run.config.data
    facts = {
        "run": run.identity,
        "shape": str(run.schedule.final),
        "parameters": f"{parameter_count(run.schedule.final, run.variant):,}",
        "context": str(training.context),
        "text": data.text.source,
        "optimizer": f"{training.optimizer}, peak learning rate {training.learning_rate.peak:g}",
        "seed": str(run.config.seed),
    }
    if result is None:
        return facts | {"results": f"none yet: saved after step {step}, before the run ended"}
    loss = "diverged" if result.validation is None else f"{result.validation:.4f} nats per token"
    return facts | {"validation loss": loss, "tokens": f"{result.tokens:,}", "FLOPs": f"{result.charged:.4g}"}


def import_checkpoint(folder: Path, to: Path, context: int | None = None) -> Transformer:
    """Convert a Hugging Face checkpoint to our format, as :func:`export` writes it.

    Args:
        folder: The folder of the checkpoint.
        to: The folder to write into.
        context: The longest sequence for our model, in tokens; the checkpoint's by default.

    Returns:
        The model.

    Raises:
        UserError: The checkpoint lacks a usable tokenizer, our transformer cannot represent its
            model exactly, or ``to`` holds anything but an earlier export, which is overwritten.
    """
    tokenizer = open_saved(saved_tokens(folder))
    model = Checkpoint(folder, context).model()
    _write(to, model, tokenizer.save)
    return model


def _tokenizer(folder: Path) -> Path:
    """Return the path of a run's tokenizer file; raise ``UserError`` if it is missing."""
    tokenizer = folder / TOKENIZER
    if not tokenizer.exists():
        raise UserError(f"{tokenizer}: is missing; without it the model cannot be used")
    return tokenizer


def _write(to: Path, model: Transformer, write_tokenizer: Callable[[Path], object]) -> None:
    """Write a model in our format into a folder.

    ``write_tokenizer`` is called with the path of the tokenizer's file.

    Raises:
        UserError: ``to`` cannot be used, or holds anything but an earlier export.
    """
    _check_place(to)
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{to}: cannot be used: {(error.strerror or str(error)).lower()}") from None
    write_tensors(to / MODEL, {name: parameter.detach() for name, parameter in model.named_parameters()})
    write_atomically(to / TOKENIZER, write_tokenizer)
    described = {
        "shape": shape_to(model.shape),
        "variant": asdict(model.variant),
    }
    write_text(to / SHAPE_FILE, json.dumps(described, indent=2) + "\n")


def _check_place(to: Path) -> None:
    """Raise ``UserError`` if an export into ``to`` could overwrite or join other files.

    ``to`` may be missing or empty, or hold ``model.safetensors`` with or without the other two
    files of an export.
    """
    there = {path.name for path in to.iterdir()} if to.is_dir() else set()
    others = sorted(there - {MODEL, SHAPE_FILE, TOKENIZER}) or sorted(there if MODEL not in there else ())
    if others:
        raise UserError(f"{to}: holds a file that no exported model has ({others[0]}); choose another --to")


def _described(path: Path) -> tuple[Shape, Variant]:
    """Read the shape and variant of an exported model from ``path``, its ``shape.json``.

    Raises:
        UserError: The file is missing, invalid or of an older version; the message lacks the
            folder, so the caller adds it.
    """
    told = read_json(path)
    if isinstance(told, dict) and "vocab" in told:
        raise UserError(f"{path.name} was written by an older version of nasgrow: export the model again")
    try:
        return shape_from(told["shape"], "shape"), Variant(**told["variant"])
    except (LookupError, TypeError) as error:
        raise UserError(f"{path.name} lacks something: {error}") from None


def load_model(folder: Path, context: int | None = None) -> Transformer:
    """Read the model of an exported folder or of a Hugging Face checkpoint.

    Args:
        folder: The folder.
        context: The longest sequence for a Hugging Face model, in tokens; the checkpoint's by default.

    Raises:
        UserError: There is no valid model, our transformer cannot represent it exactly, or an
            exported model has another context than ``context``.
    """
    if not (folder / SHAPE_FILE).exists() and is_checkpoint(folder):
        return Checkpoint(folder, context).model()
    model = load_exported(folder)
    check_context(model, context, folder)
    return model


def check_context(model: Transformer, context: int | None, folder: Path) -> None:
    """Raise ``UserError`` if ``context`` is given and is not exactly the model's context.

    The message names ``folder``, which holds the model.
    """
    if context not in (None, model.variant.context):
        raise UserError(f"context: is {model.variant.context} in {folder}, and cannot be {context}")


def load_exported(folder: Path) -> Transformer:
    """Read a model that :func:`export` wrote; its logits equal those of the run's model.

    Raises:
        UserError: A file is missing or invalid, or the tensors do not fit the shape.
    """
    shape, variant = with_prefix(
        f"{folder}: is not an exported model", partial(_described, folder / SHAPE_FILE)
    )
    if (folder / MODEL).exists() and not (folder / MODEL).is_file():
        raise UserError(f"{folder}: is not an exported model: {MODEL} is not a regular file")
    try:
        tensors = load_file(folder / MODEL)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: is not an exported model: {error}") from None
    kinds = {tensor.dtype for tensor in tensors.values()}
    if len(kinds) != 1 or not kinds <= FLOATS:
        raise UserError(
            f"{folder}: the tensors of {MODEL} must all have the same floating dtype, not {kinds}"
        )
    expected = {name: entry.stored for name, entry in table(shape, variant).items()}
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
        raise UserError(f"{folder}: the tensors of {MODEL} do not match {SHAPE_FILE}")
    return model_with(shape, variant, tensors)
