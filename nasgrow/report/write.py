"""Write the report of a study."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nasgrow.errors import UserError
from nasgrow.report.findings import Findings, find
from nasgrow.report.publish import check_replaceable, put, render
from nasgrow.report.sections import compose
from nasgrow.report.summary import summarise
from nasgrow.report.verdict import Verdict
from nasgrow.study.config import STUDY
from nasgrow.study.study import ResolvedStudy
from nasgrow.training.atomic_files import to_json

REPORT_FILES = {"index.html", "report.md", "runs.parquet", "runs.csv", "events.csv", "summary.json"}
"""The files that a report's folder always holds, besides figures."""

WINNER = "best-schedule.yaml"
"""The file that it also holds if there is a best schedule."""


def check_begun(folder: Path) -> None:
    """Raise ``UserError`` unless there is a study in ``folder``."""
    if not (folder / STUDY).exists():
        raise UserError(f"{folder}: no such study yet; start it with nasgrow search")


def check_place(to: Path) -> None:
    """Raise ``UserError`` unless ``to`` is missing, empty or an older report of a study."""
    check_replaceable(to, REPORT_FILES, {WINNER})


def write_report(
    study: ResolvedStudy, folder: Path, to: Path, watch: Callable[[int, int], None] = lambda done, total: None
) -> Verdict:
    """Write the report of the study in ``folder`` into the folder ``to``, replacing an older report.

    Args:
        study: The study.
        folder: Its folder.
        to: The report's folder.
        watch: Called with the number of runs read so far and the number of all runs.

    Raises:
        UserError: ``folder`` holds no study, or ``to`` holds something other than an older report.
    """
    check_begun(folder)
    check_place(to)
    found = find(study, folder, watch)
    put(to, lambda beside: _fill(beside, found))
    return found.verdict


def _fill(beside: Path, found: Findings) -> None:
    render(beside, *compose(found))
    found.records.runs.to_parquet(beside / "runs.parquet", index=False)
    found.records.runs.to_csv(beside / "runs.csv", index=False)
    found.records.events.to_csv(beside / "events.csv", index=False)
    (beside / "summary.json").write_text(to_json(summarise(found), indent=2) + "\n", encoding="utf-8")
    if found.winner is not None:
        (beside / WINNER).write_text(found.winner, encoding="utf-8")
