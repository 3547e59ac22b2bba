"""Built-in spaces: the files of ``search_spaces/``, which a study names without a path."""

from __future__ import annotations

from functools import cache
from pathlib import Path

SHIPPED = Path(__file__).parent / "builtin"
"""The folder of built-in spaces in an installed wheel; a checkout has them in :data:`CHECKOUT`."""
CHECKOUT = Path(__file__).parents[2] / "search_spaces"


@cache
def built_in() -> dict[str, Path]:
    """Return the file of each built-in space, by name."""
    folder = SHIPPED if SHIPPED.is_dir() else CHECKOUT
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def description(path: Path) -> str:
    """Return the comment at the top of a space's file up to its list of parameters, in one line."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        if line.startswith(("#  ", "# points:")):
            break
        lines.append(line[2:])
    return " ".join(lines)
