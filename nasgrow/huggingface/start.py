"""Complete run and study files that start from a checkpoint, from the checkpoint's folder; no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from nasgrow.config import TrainingConfig, VariantConfig
from nasgrow.errors import UserError
from nasgrow.huggingface.families import CONFIG, read_layout
from nasgrow.huggingface.tokenizer import saved_tokens
from nasgrow.schedule import shape_to
from nasgrow.strict import with_prefix


def with_checkpoint(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Complete a run or study file with the settings of the checkpoint that it starts from.

    These are the remaining fields of ``start``, the variant and the tokenizer. A file that has the
    checkpoint's hash is complete and stays as it is; the training checks that the checkpoint is unchanged.

    Args:
        document: The content of the file.
        where: The file's name, for messages.

    Raises:
        UserError: Our transformer cannot represent the checkpoint, or the file contradicts it.
    """
    start = document.get("start")
    if not isinstance(start, dict) or not isinstance(start.get("from"), str) or "hash" in start:
        return dict(document)  # no checkpoint, or a complete file; pydantic reports invalid fields
    return with_prefix(where, partial(_completed, document, start))


def _completed(document: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
    folder, data = Path(start["from"]), document.get("data", {})
    training = document.get("training", {})
    given = training.get("context") if isinstance(training, dict) else None
    context = given if isinstance(given, int) and given > 0 else TrainingConfig().context
    layout = with_prefix("start.from", partial(read_layout, folder, context))
    variant = {name: getattr(layout.variant, name) for name in VariantConfig.model_fields}
    tokens = with_prefix("start.from", partial(saved_tokens, folder)).model_dump()
    _check_given("variant", document.get("variant"), variant)
    _check_given("data", data, {"tokens": tokens})
    described = {
        "hash": checkpoint_hash(folder),
        "vocab": layout.variant.vocab,
        "shape": shape_to(layout.shape),
    }
    return {
        **document,
        "start": {**described, **start},
        "variant": variant,
        "data": {**data, "tokens": tokens} if isinstance(data, dict) else data,
    }


def _check_given(section: str, given: object, found: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if a section of a file contradicts the checkpoint."""
    for name, value in given.items() if isinstance(given, dict) else ():
        own = found.get(name, value)
        if value != (list(own) if isinstance(own, tuple) else own):
            raise UserError(
                f"{section}.{name}: the checkpoint has {own!r}, not {value!r}: leave this field out"
            )


def checkpoint_hash(folder: Path) -> str:
    """Return a hash of a checkpoint's configuration and weights.

    Raises:
        UserError: The files cannot be read.
    """
    try:
        files = [folder / CONFIG, *sorted(folder.glob("*.safetensors"))]
        stats = [(path, path.stat()) for path in files]
        lines = [f"{path.name} {_digest(path, stat.st_size, stat.st_mtime_ns)}" for path, stat in stats]
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@lru_cache
def _digest(path: Path, size: int, changed: int) -> str:
    """Return the hash of a file.

    Its size and modification time are arguments so that the cache notices changes.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
