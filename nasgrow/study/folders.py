"""The folders in ``runs``: a marker file in each says whether it holds a run, a study or something else."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from nasgrow.errors import UserError
from nasgrow.strict import plain_name, with_prefix
from nasgrow.study.config import PREFIXES, STUDY
from nasgrow.training.records import DESCRIPTION

FAMILY = "family.yaml"
"""The marker file of a family's folder, which holds its configuration."""

POLICY = "policy.yaml"
"""The marker file of a slope rule's folder, which holds its configuration."""

FOLDER_KINDS = {
    DESCRIPTION: "a run",
    STUDY: "a study",
    FAMILY: "a family",
    POLICY: "what a slope rule trains",
}
"""The marker file of each kind of folder, and the kind in words."""

PASSING = (".*lock", ".*.tmp")
"""Patterns of lock files and temporary files, which any folder may hold."""


def named_folder(name: str) -> Path:
    """Return the folder in ``runs`` that ``--name`` names.

    Raises:
        UserError: The name is no valid folder name, or is that of the prefix cache.
    """
    with_prefix("--name", partial(plain_name, name))
    if name == PREFIXES:
        raise UserError(f"--name: {PREFIXES!r} is the folder of the prefix cache: choose another name")
    return Path("runs") / name


def check_folder(folder: Path, mark: str, instead: str, begun: Sequence[str] = ()) -> None:
    """Raise ``UserError`` unless ``folder`` is new, empty, or holds the marker ``mark``; write nothing.

    Lock files and temporary files do not count. A folder with the marker of another kind is always
    refused, whatever else it holds.

    Args:
        folder: The folder.
        mark: The marker file of the expected kind.
        instead: Advice for the message, if the folder is of another kind.
        begun: Patterns of files that may also exist before the marker is written.
    """
    if not folder.is_dir():
        return  # creating it will raise an error if the path is wrong
    there = sorted(path.name for path in folder.iterdir())
    others = [kind for name, kind in FOLDER_KINDS.items() if name in there and name != mark]
    allowed = ("*",) if mark in there else (*PASSING, *begun)
    strange = [name for name in there if not any(fnmatch(name, pattern) for pattern in allowed)]
    if others or strange:
        held = others[0] if others else strange[0]
        raise UserError(f"{folder}: holds {held}, not {FOLDER_KINDS[mark]}; {instead}")
