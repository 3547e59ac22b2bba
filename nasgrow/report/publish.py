"""Write a report into a temporary folder and rename it, so that a reader never sees a partial report."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from nasgrow.errors import UserError
from nasgrow.report.figures import style
from nasgrow.report.html import to_html
from nasgrow.report.markdown import FIGURES, to_markdown
from nasgrow.report.page import Page
from nasgrow.report.sections.common import Gallery


def check_replaceable(to: Path, always: Collection[str], sometimes: Collection[str] = ()) -> None:
    """Check that ``to`` is missing or empty, or holds an older report of the same kind.

    Args:
        to: The folder.
        always: The files that every report of this kind holds, besides figures.
        sometimes: The files that it may hold.

    Raises:
        UserError: ``to`` is a file, has other files, or lacks one of ``always``.
    """
    if to.exists() and not to.is_dir():
        raise UserError(f"{to}: is a file; choose another folder with --to")
    there = {path.name for path in to.iterdir()} if to.exists() else set()
    others, missing = sorted(there - {*always, *sometimes, FIGURES}), sorted({*always} - there)
    if others:
        raise UserError(
            f"{to}: holds a file that no report has ({others[0]}); choose another folder with --to"
        )
    if there and missing:
        raise UserError(
            f"{to}: is not a report of this kind: it has no {missing[0]}; choose another folder with --to"
        )


def put(to: Path, fill: Callable[[Path], None]) -> None:
    """Call ``fill`` with a new folder beside ``to``, then rename it to ``to``.

    It replaces an older report. If ``fill`` or the renaming fails, the older report stays.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    # Not by the process number: processes in containers may have the same.
    beside = to.with_name(f".{to.name}.{secrets.token_hex(4)}.tmp")
    try:
        beside.mkdir()
        fill(beside)
        _swap(beside, to)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def render(folder: Path, page: Page, gallery: Gallery) -> None:
    """Write a page (``index.html``, ``report.md``) and its figures into an existing folder."""
    (folder / FIGURES).mkdir()
    for name, figure in gallery.figures.items():
        style.save(figure, folder / FIGURES / name)
    drawn = {name: (folder / FIGURES / f"{name}.svg").read_bytes() for name in gallery.figures}
    (folder / "index.html").write_text(to_html(page, drawn), encoding="utf-8", errors="replace")
    (folder / "report.md").write_text(to_markdown(page), encoding="utf-8", errors="replace")


def _swap(beside: Path, to: Path) -> None:
    """Replace the folder ``to`` by ``beside``; restore the old one if the rename fails."""
    old = beside.with_suffix(".old")
    if to.exists():
        to.rename(old)
    try:
        beside.rename(to)
    except OSError:
        if old.exists():
            old.rename(to)
        raise
    shutil.rmtree(old, ignore_errors=True)
