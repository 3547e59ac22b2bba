"""Read and write the safetensors files of a checkpoint, one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nasgrow.errors import UserError
from nasgrow.strict import read_text

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LARGEST_INDEX = 100_000_000
"""The largest index file that is read, in bytes."""

DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
"""The floating dtypes that a checkpoint may have, and their names in safetensors files."""


class Shards:
    """The tensors in the safetensors files of a folder; a file is open only while a tensor is read.

    Attributes:
        sizes: The sizes of each tensor, by name.
        dtypes: The dtype of each tensor, by name.

    Raises:
        UserError: A file is missing or damaged, or a tensor is not floating.
    """

    def __init__(self, folder: Path) -> None:
        self._files = _files(folder)
        self.sizes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        named = {code: dtype for dtype, code in DTYPES.items()}
        for path in sorted(set(self._files.values())):
            with _opened(path) as file:
                held = set(file.keys())
                for name in (name for name, of in self._files.items() if of == path):
                    if name not in held:
                        raise UserError(f"{path}: lacks {name}, which the index says is there")
                    view = file.get_slice(name)
                    if view.get_dtype() not in named:
                        raise UserError(f"{path}: {name} is {view.get_dtype()}; weights must be floating")
                    self.sizes[name] = tuple(view.get_shape())
                    self.dtypes[name] = named[view.get_dtype()]

    def read(self, name: str) -> Tensor:
        """Read a tensor into new memory."""
        with _opened(self._files[name]) as file:
            tensor: Tensor = file.get_tensor(name).clone()
            return tensor


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, "pt")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: is not a safetensors file: {error}") from None


def _files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor in a folder."""
    index = folder / INDEX
    if not index.exists():
        if not (folder / SINGLE).exists():
            raise UserError(f"{folder}: has neither {SINGLE} nor {INDEX}; only safetensors can be read")
        with _opened(folder / SINGLE) as file:
            return dict.fromkeys(file.keys(), folder / SINGLE)
    try:
        told = json.loads(read_text(index, LARGEST_INDEX))["weight_map"]
        found = {str(name): str(file) for name, file in told.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{index}: must hold weight_map, a mapping from tensors to files") from None
    for file in found.values():
        if Path(file).name != file:
            raise UserError(f"{index}: weight_map names {file!r}, which is not a file of the folder")
    return {name: folder / file for name, file in found.items()}


@dataclass(frozen=True)
class Planned:
    """A tensor to be written: its name, sizes and dtype, and a function that makes its values."""

    name: str
    sizes: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return prod(self.sizes) * self.dtype.itemsize


class _Placed(NamedTuple):
    shard: int
    tensor: Planned


def write_shards(folder: Path, tensors: Sequence[Planned], largest: int) -> None:
    """Write tensors into files of at most ``largest`` bytes; a larger tensor gets a file to itself.

    Each tensor is made just before it is written, and freed after the next is made. Several files
    get an index.

    Raises:
        FileExistsError: A file exists already.
    """
    placed, used, shard = [], 0, 0
    for tensor in tensors:
        if used and used + tensor.bytes > largest:
            shard, used = shard + 1, 0
        placed.append(_Placed(shard, tensor))
        used += tensor.bytes
    count = shard + 1
    where: dict[str, str] = {}
    for number, members in groupby(placed, key=lambda one: one.shard):
        file = SINGLE if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        own = [one.tensor for one in members]
        _write(folder / file, own)
        where |= {tensor.name: file for tensor in own}
    if count > 1:
        index = {"metadata": {"total_size": sum(tensor.bytes for tensor in tensors)}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write(path: Path, tensors: Sequence[Planned]) -> None:
    """Write a new safetensors file: the header's length, the header, and the values in its order.

    Raises:
        FileExistsError: The file exists already.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.bytes
        header[tensor.name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": tensor.sizes,
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            values = tensor.make().to(tensor.dtype).contiguous()
            assert tuple(values.shape) == tensor.sizes, tensor.name
            file.write(values.reshape(-1).view(torch.uint8).numpy().data)
            del values  # before the next is made
