"""Write files so that no reader ever sees half of one."""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from nasgrow.errors import UserError


def write_plainly(path: Path, write: Callable[[Path], object]) -> None:
    """Create a file by calling ``write``, with the permissions that the umask gives.

    ``write`` is called with ``path``, where an empty file exists by then. Without this function,
    only the owner could read a file that safetensors writes.

    Raises:
        FileExistsError: There is a file at ``path`` already.
    """
    path.touch(exist_ok=False)
    mode = stat.S_IMODE(path.stat().st_mode)
    write(path)
    path.chmod(mode)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file in one step.

    ``write`` is called with the path of an empty temporary file in the same folder. That file is
    then flushed to disk and renamed to ``path``.

    Raises:
        UserError: The file cannot be written. An older file at ``path`` is unchanged.
    """
    # Not by the process number: processes on other machines, or in containers, may have the same.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        write_plainly(beside, write)
        descriptor = os.open(beside, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from None
    finally:
        beside.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the temporary files that killed writers left in ``folder``. No process may be writing there."""
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)


def to_json(data: object, indent: int | None = None) -> str:
    """Return data as JSON that every parser reads: a number that is not finite becomes null."""
    return json.dumps(_finite(data), indent=indent, allow_nan=False)


def _finite(data: object) -> object:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 with :func:`write_atomically`."""
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))
