"""Write tensors so that no reader ever sees half of a file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from nasgrow.errors import UserError
from nasgrow.training.atomic_files import write_atomically


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file atomically.

    Raises:
        UserError: The file cannot be written. An older file at ``path`` is unchanged.
    """
    try:
        write_atomically(path, partial(save_file, tensors))
    except SafetensorError as error:
        raise UserError(f"{path}: cannot be written: {error}") from None
