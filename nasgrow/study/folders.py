"""The folders in ``runs``: each is of one kind, which a file in it names."""

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
"""The file in a family's folder that says what it is."""

POLICY = "policy.yaml"
"""The file in the folder of a slope rule's runs that says what it is."""

FOLDER_KINDS = {
    DESCRIPTION: "a run",
    STUDY: "a study",
    FAMILY: "a family",
    POLICY: "what a slope rule trains",
}
"""The file that names a kind, and the kind in words."""

PASSING = (".*lock", ".*.tmp")
"""Locks and files that are being written, which belong to no kind."""


def named_folder(name: str) -> Path:
    """The folder in ``runs`` that ``--name`` names.

    Raises:
        UserError: No folder, or not that of runs, can have the name.
    """
    with_prefix("--name", partial(plain_name, name))
    if name == PREFIXES:
        raise UserError(f"--name: {PREFIXES!r} is the folder of what runs share: choose another name")
    return Path("runs") / name


def check_folder(folder: Path, mark: str, instead: str, begun: Sequence[str] = ()) -> None:
    """Raise ``UserError`` unless ``folder`` is free or of the kind of ``mark``; nothing is touched.

    Args:
        folder: The folder.
        mark: The file that names its kind.
        instead: What to do if it is of another.
        begun: Patterns of what may be there before the mark is.
    """
    if not folder.is_dir():
        return  # making it will say what is wrong, if anything is
    there = sorted(path.name for path in folder.iterdir())
    others = [kind for name, kind in FOLDER_KINDS.items() if name in there and name != mark]
    allowed = ("*",) if mark in there else (*PASSING, *begun)
    strange = [name for name in there if not any(fnmatch(name, pattern) for pattern in allowed)]
    if others or strange:
        held = others[0] if others else strange[0]
        raise UserError(f"{folder}: holds {held}, not {FOLDER_KINDS[mark]}; {instead}")
