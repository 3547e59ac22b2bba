"""Where a schedule comes from, as the report beside its file says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nasgrow.report.findings import find
from nasgrow.report.schedule_origin import origin
from nasgrow.report.summary import summarise
from tests.report.studies import LATER, usual


def summary_beside(place: Path) -> dict[str, Any]:
    """Write the summary of an unconfirmed study; returns the schedule that it calls best."""
    recorded = usual(place / "study")
    summary = summarise(find(recorded.study, recorded.folder))
    (place / "summary.json").write_text(json.dumps(summary))
    best: dict[str, Any] = summary["verdict"]["schedule"]["schedule"]
    return best


def test_a_candidate_is_called_one(tmp_path: Path) -> None:
    best = summary_beside(tmp_path)
    found = origin(tmp_path / "best-schedule.yaml", best)
    assert found is not None
    assert found.study == "small"
    assert found.final_rate == 0.006
    assert found.gain == (
        "validation loss 0.1000 lower than the final shape from scratch and 0.0500 lower than the best of "
        "3 fixed shapes searched (hidden 8) (a candidate, not confirmed)"
    )


def test_another_schedule_or_no_report_has_no_origin(tmp_path: Path) -> None:
    best = summary_beside(tmp_path)
    assert origin(tmp_path / "best-schedule.yaml", LATER) is None
    assert origin(tmp_path / "elsewhere" / "best-schedule.yaml", best) is None
    (tmp_path / "summary.json").write_text('{"verdict": 3}')
    assert origin(tmp_path / "best-schedule.yaml", best) is None
