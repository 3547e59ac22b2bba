"""Writing a report: beside its place, then renamed, so that nobody ever sees half of one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from nasgrow.report.figures import style
from nasgrow.report.findings import Findings, find
from nasgrow.report.html import to_html
from nasgrow.report.markdown import FIGURES, to_markdown
from nasgrow.report.sections import compose
from nasgrow.report.summary import summarise
from nasgrow.report.verdict import Verdict
from nasgrow.search.config import STUDY
from nasgrow.search.study import Study
from nasgrow.training.files import to_json

NAMES = {
    "index.html",
    "report.md",
    FIGURES,
    "runs.parquet",
    "runs.csv",
    "summary.json",
    "best-schedule.yaml",
}
"""All that a report's folder may hold; one with anything else is not replaced."""


def write_report(
    study: Study, folder: Path, to: Path, watch: Callable[[int, int], None] = lambda done, total: None
) -> Verdict:
    """Write the report of the study in ``folder`` into the folder ``to``, in place of an older one.

    Args:
        study: The study.
        folder: Its folder.
        to: The report's folder.
        watch: Is told how many of how many runs were read.

    Raises:
        ValueError: There is no such study, or ``to`` holds something else than a report.
    """
    if not (folder / STUDY).exists():
        raise ValueError(f"{folder}: no such study yet; start it with nasgrow search")
    _check_replaceable(to)
    found = find(study, folder, watch)
    to.parent.mkdir(parents=True, exist_ok=True)
    beside = to.with_name(f".{to.name}.{os.getpid()}.tmp")
    try:
        _fill(beside, found)
        _swap(beside, to)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return found.verdict


def _check_replaceable(to: Path) -> None:
    if to.exists() and not to.is_dir():
        raise ValueError(f"{to}: is a file; choose another folder with --to")
    others = sorted({path.name for path in to.iterdir()} - NAMES) if to.exists() else []
    if others:
        raise ValueError(f"{to}: holds what is not a report's ({others[0]}); choose another folder with --to")


def _fill(beside: Path, found: Findings) -> None:
    (beside / FIGURES).mkdir(parents=True)
    page, gallery = compose(found)
    for name, figure in gallery.figures.items():
        style.save(figure, beside / FIGURES / name)
    drawn = {name: (beside / FIGURES / f"{name}.svg").read_bytes() for name in gallery.figures}
    (beside / "index.html").write_text(to_html(page, drawn), encoding="utf-8")
    (beside / "report.md").write_text(to_markdown(page), encoding="utf-8")
    found.records.runs.to_parquet(beside / "runs.parquet", index=False)
    found.records.runs.to_csv(beside / "runs.csv", index=False)
    (beside / "summary.json").write_text(to_json(summarise(found), indent=2) + "\n", encoding="utf-8")
    if found.winner is not None:
        (beside / "best-schedule.yaml").write_text(found.winner, encoding="utf-8")


def _swap(beside: Path, to: Path) -> None:
    """Put a whole new report in the place of an older one."""
    old = to.with_name(f".{to.name}.{os.getpid()}.old")
    if to.exists():
        to.rename(old)
    try:
        beside.rename(to)
    except OSError:
        if old.exists():
            old.rename(to)
        raise
    shutil.rmtree(old, ignore_errors=True)
