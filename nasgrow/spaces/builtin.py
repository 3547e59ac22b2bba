"""Built-in spaces: the files of ``search_spaces/``, which a study names without a path."""

from __future__ import annotations

from functools import cache
from pathlib import Path

SHIPPED = Path(__file__).parent / "builtin"
"""Where a wheel has them; in a checkout they are the files of ``search_spaces/`` themselves."""
CHECKOUT = Path(__file__).parents[2] / "search_spaces"


@cache
def built_in() -> dict[str, Path]:
    """The file of each built-in space, by name."""
    folder = SHIPPED if SHIPPED.is_dir() else CHECKOUT
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def description(path: Path) -> str:
    """What a space expresses: the first sentences of its file's header, before its parameters are listed."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        if line.startswith(("#  ", "# points:")):
            break
        lines.append(line[2:])
    return " ".join(lines)
