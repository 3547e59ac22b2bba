"""Write the report of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from nasgrow.report.compare.ranking import Contest, StudyComparison, compare
from nasgrow.report.compare.sections import cautions, compose
from nasgrow.report.compare.studies import check_distinct, entries
from nasgrow.report.findings import find
from nasgrow.report.load import RUN_COLUMNS
from nasgrow.report.publish import check_replaceable, put, render
from nasgrow.report.summary import summarise
from nasgrow.report.write import check_begun
from nasgrow.study.study import ResolvedStudy
from nasgrow.training.atomic_files import to_json

COMPARE_FILES = {"index.html", "report.md", "runs.parquet", "runs.csv", "summary.json"}
"""The files that the report's folder holds, besides figures."""


def write_comparison(
    studies: Sequence[tuple[ResolvedStudy, Path]],
    name: str,
    to: Path,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> StudyComparison:
    """Write the report of a comparison into the folder ``to``, replacing an older report.

    Args:
        studies: The studies and their folders.
        name: The title of the report.
        to: The report's folder.
        watch: Called with the number of runs of a study read so far and the number of all its runs.

    Raises:
        UserError: There are fewer than two studies, one is missing or given twice, or ``to`` holds
            something other than an older comparison.
    """
    check_distinct([folder for _, folder in studies])
    for _, folder in studies:
        check_begun(folder)
    check_replaceable(to, COMPARE_FILES)
    comparison = compare(name, entries([find(study, folder, watch) for study, folder in studies]))
    put(to, lambda beside: _fill(beside, comparison))
    return comparison


def _fill(beside: Path, comparison: StudyComparison) -> None:
    render(beside, *compose(comparison))
    runs = runs_of(comparison)
    runs.to_parquet(beside / "runs.parquet", index=False)
    runs.to_csv(beside / "runs.csv", index=False)
    (beside / "summary.json").write_text(to_json(summarised(comparison), indent=2) + "\n", encoding="utf-8")


def runs_of(comparison: StudyComparison) -> pd.DataFrame:
    """Return a row for each run of each study."""
    rows = [
        {"study": entry.title, **row}
        for entry in comparison.entries
        for row in entry.found.records.runs.to_dict("records")
    ]
    return pd.DataFrame(rows, columns=["study", *RUN_COLUMNS])


def summarised(comparison: StudyComparison) -> dict[str, Any]:
    """Return the content of ``summary.json``."""
    return {
        "name": comparison.name,
        "headline": comparison.headline,
        "comparable": not comparison.apart,
        "apart": list(comparison.apart),
        "contests": [_contest(contest) for contest in comparison.contests],
        "weaknesses": cautions(comparison),
        "studies": {entry.title: summarise(entry.found) for entry in comparison.entries},
    }


def _contest(contest: Contest) -> dict[str, Any]:
    return {
        "studies": [entry.title for entry in contest.entries],
        "confirmed": contest.confirmed,
        "split": contest.split,
        "decided": contest.decided,
        "unequal": contest.unequal,
        "headline": contest.headline,
        "standings": [
            {
                "study": one.entry.title,
                "trial": one.ours.label,
                "loss": one.ours.mean,
                "losses": list(one.ours.losses),
                "leader_less_this": None if one.behind is None else asdict(one.behind),
            }
            for one in contest.standings
        ],
    }
