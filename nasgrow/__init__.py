"""nasgrow: search for the best way to grow a transformer while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nasgrow.model import Transformer

__version__ = "0.2.0"


def load(path: str | Path, context: int | None = None) -> Transformer:
    """The model in the folder ``path``, written by ``nasgrow export`` or by Hugging Face's library.

    Args:
        path: The folder.
        context: The longest sequence that a model of that library is for; by default what its folder says.

    Raises:
        UserError: There is none, or it is one that our transformer cannot represent exactly.
    """
    from nasgrow.export import load_model

    return load_model(Path(path), context)
