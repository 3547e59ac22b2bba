"""Writing files such that no reader ever sees half of one."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` write a file beside ``path``, make it durable, rename it.

    Raises:
        ValueError: It cannot be written; what was there before is still there.
    """
    # Processes of several machines may write here, and have the same number.
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        write(beside)
        descriptor = os.open(beside, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from None
    finally:
        beside.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what writers that died left beside the files of ``folder``; nobody may be writing there."""
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)


def to_json(data: object, indent: int | None = None) -> str:
    """JSON that every parser reads: a number that is not finite becomes null."""
    return json.dumps(_finite(data), indent=indent, allow_nan=False)


def _finite(data: object) -> object:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))
