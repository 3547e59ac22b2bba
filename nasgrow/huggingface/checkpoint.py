"""Convert the tensors of Hugging Face checkpoints to our models and back.

"The library" is ``transformers``. It stores the weights of linear layers as (output, input), we as (input,
output). It also orders the units of keys differently: see :mod:`nasgrow.huggingface.families`. Nothing else
differs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from nasgrow.errors import UserError
from nasgrow.huggingface.families import CONFIG, Layout, config_for, read_layout
from nasgrow.huggingface.shards import Planned, Shards, write_shards
from nasgrow.model import Transformer, model_with
from nasgrow.params import TensorSpec, table
from nasgrow.shape import Shape, Variant

SHARD_BYTES = 5_000_000_000
"""The largest file of a checkpoint, in bytes; a larger checkpoint is divided into several files."""

_OUTSIDE = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "output": "lm_head.weight",
}
_WITHIN = {
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    "out": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "up_bias": "mlp.up_proj.bias",
    "down": "mlp.down_proj.weight",
    "down_bias": "mlp.down_proj.bias",
}
_SCALED = {"query", "key", "query_bias", "key_bias"}


def library_name(entry: TensorSpec) -> str:
    """Return the name of a tensor in the library's checkpoints."""
    if entry.layer is None:
        return _OUTSIDE[entry.role]
    return f"model.layers.{entry.layer}.{_WITHIN[entry.role]}"


def _turned(entry: TensorSpec) -> bool:
    """Return whether the library stores the transpose of our tensor."""
    return len(entry.row.dims) == 2 and entry.role != "embedding"


def _stored(entry: TensorSpec) -> tuple[int, ...]:
    """Return the dimensions of a tensor as the library stores it."""
    return entry.stored[::-1] if _turned(entry) else entry.stored


def _with_rows(entry: TensorSpec, ours: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Reorder the key units of one of our tensors to ``rows``; a tensor without keys stays as it is."""
    if "k" not in entry.axes:
        return ours
    return ours.view(entry.sizes).index_select(entry.axes.index("k"), torch.tensor(rows)).view(entry.stored)


def from_library(entry: TensorSpec, theirs: Tensor, layout: Layout) -> Tensor:
    """Convert a tensor of the library to ours."""
    ours = theirs.T.contiguous() if _turned(entry) else theirs
    return _with_rows(entry, ours, layout.rows)


def to_library(entry: TensorSpec, ours: Tensor, layout: Layout) -> Tensor:
    """Convert a tensor of ours to the library's."""
    inverse = sorted(range(len(layout.rows)), key=layout.rows.__getitem__)
    theirs = _with_rows(entry, ours.detach(), tuple(inverse))
    if entry.role in _SCALED and layout.query_scale != 1.0:
        theirs = theirs * layout.query_scale
    return theirs.T if _turned(entry) else theirs


class Checkpoint:
    """A checkpoint in a folder, whose tensors are read on demand.

    Args:
        folder: The folder.
        context: The longest sequence for our model; by default the checkpoint's.

    Attributes:
        folder: The folder.
        layout: Its shape and variant, and how its tensors are stored.
        entries: Its tensors, by our names.
        shards: Its files.
        dtype: The smallest dtype that holds the values of all its tensors.

    Raises:
        UserError: The checkpoint is damaged, or our transformer cannot represent it.
    """

    def __init__(self, folder: Path, context: int | None = None) -> None:
        self.folder = folder
        self.layout = read_layout(folder, context)
        self.entries = table(self.layout.shape, self.layout.variant)
        self.shards = Shards(folder)
        expected = {library_name(entry): _stored(entry) for entry in self.entries.values()}
        for name, sizes in expected.items():
            found = self.shards.sizes.get(name)
            if found != sizes:
                told = "is missing" if found is None else f"is {found}, not {sizes}"
                raise UserError(f"{folder}: {name} {told}")
        self._check_rest(set(expected))
        self.dtype = reduce(torch.promote_types, (self.shards.dtypes[name] for name in expected))

    def _check_rest(self, expected: set[str]) -> None:
        """Raise ``UserError`` if the checkpoint has tensors that our model would lose."""
        zeros = {
            f"model.layers.{layer}.{name}"
            for layer in range(len(self.layout.shape.layers))
            for name in self.layout.zeros
        }
        unused = {"lm_head.weight"} if self.layout.variant.tied else set()
        for name in self.shards.sizes:
            if name in expected or name in unused or name.endswith("rotary_emb.inv_freq"):
                continue
            if name not in zeros:
                raise UserError(f"{self.folder}: {name} is not a tensor of this kind of model")
            if self.shards.read(name).any():
                raise UserError(f"{self.folder}: {name} is not zero, and our models have no such bias")

    def read(self, entry: TensorSpec) -> Tensor:
        """Read a tensor, converted to ours, in the checkpoint's dtype."""
        theirs = self.shards.read(library_name(entry)).to(self.dtype)
        return from_library(entry, theirs, self.layout)

    def model(self) -> Transformer:
        """Read the whole model, in the checkpoint's dtype."""
        shape, variant = self.layout.shape, self.layout.variant
        return model_with(shape, variant, {name: self.read(entry) for name, entry in self.entries.items()})


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder holds a checkpoint of the library, that is, a ``config.json``."""
    return (folder / CONFIG).exists()


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without ``torch.``."""
    return str(dtype).removeprefix("torch.")


@contextmanager
def new_folder(to: Path) -> Iterator[Path]:
    """Give a temporary folder to write into; on success it is renamed to ``to``, else it is removed.

    The remains of a killed process are removed by the next process that writes to the same place.

    Raises:
        UserError: ``to`` exists and is not empty, another process is writing it, or it cannot be
            written. Every ``OSError`` of the caller's block counts as the last of these.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to}: exists already; choose another folder")
    to = to.absolute()
    beside = to.with_name(f".{to.name}.partial")
    lock = FileLock(to.with_name(f".{to.name}.lock"))
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        try:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
            yield beside
            beside.replace(to)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()
    except Timeout:
        raise UserError(f"{to}: another process is writing it") from None
    except OSError as error:
        raise UserError(f"{to}: cannot be written: {(error.strerror or str(error)).lower()}") from None


def write_checkpoint(
    folder: Path,
    shape: Shape,
    variant: Variant,
    make: Callable[[TensorSpec], Tensor],
    dtype: torch.dtype,
    *,
    like: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    largest: int = SHARD_BYTES,
) -> None:
    """Write the configuration and tensors of a checkpoint that the library can read.

    Args:
        folder: The folder to write into.
        shape: The model's shape.
        variant: The model's variant.
        make: Called for each tensor when it is about to be written; returns its values.
        dtype: The dtype of the tensors in the files.
        like: The configuration of the checkpoint from which this model was grown.
        more: Further fields of the configuration.
        largest: The most bytes of a file.

    Raises:
        UserError: No model of the library computes this function.
    """
    config, layout = config_for(shape, variant, like)
    config.pop("torch_dtype", None)  # its name in releases before 5
    config |= {"dtype": dtype_name(dtype), **(more or {})}
    tensors = []

    def made(entry: TensorSpec) -> Tensor:
        return to_library(entry, make(entry), layout)

    for entry in table(shape, variant).values():
        tensors.append(Planned(library_name(entry), _stored(entry), dtype, partial(made, entry)))
        if entry.role == "down" and layout.zeros:
            sizes = {"mlp.gate_proj.bias": shape.layers[0].mlp, "self_attn.o_proj.bias": shape.hidden}
            for name in layout.zeros:
                zero = partial(torch.zeros, sizes[name], dtype=dtype)
                tensors.append(Planned(f"model.layers.{entry.layer}.{name}", (sizes[name],), dtype, zero))
    write_shards(folder, tensors, largest)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
