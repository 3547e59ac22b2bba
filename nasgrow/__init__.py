"""nasgrow: search for the best way to grow a transformer while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nasgrow.model import Transformer


def load(path: str | Path) -> Transformer:
    """The model that ``nasgrow export`` wrote into the folder ``path``."""
    from nasgrow.export import load_exported

    return load_exported(Path(path))
