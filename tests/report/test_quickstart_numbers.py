"""The script that prints the numbers of README.md: each is that of the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from nasgrow.study.trials import read_trials
from tests.benchmarks.quickstart_numbers import lines
from tests.report.pages import said
from tests.report.studies import FINAL_ALONE, FIXED, GROWN, usual


def test_losses_of_both_splits_differences_and_costs_are_those_of_the_records(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    recorded.confirm("search 1", GROWN, [1.80, 1.82, 1.81])
    recorded.confirm("baseline 1", FINAL_ALONE, [1.90, 1.92, 1.91], first=10)
    recorded.confirm("fixed 4", FIXED["hidden 8"], [1.70, 1.73, 1.70], first=20)
    text = "\n".join(lines(said(recorded)[2], read_trials(recorded.folder)))
    assert text.startswith("Growth did not win: the best of 3 fixed shapes searched (hidden 8)")
    assert "| the best schedule | 1.790 | 1.810 | " in text
    assert " | 64,000 | 12.5 |" in text
    assert "| the final shape from scratch | 1.890 | 1.910 |" in text
    assert "Test loss +0.100 (95% interval +0.075 to +0.125) against that of the best of 3" in text
    assert "final shape 1.900, best of 3 fixed shapes searched (hidden 8) 1.850, best schedule 1.800" in text
    assert "3 trials in 0.6 min, 6 trials of fixed shapes in 1.2 min, 3 baseline runs in 0.6 min" in text


def test_without_confirmation_there_is_nothing_to_paste(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    with pytest.raises(SystemExit, match="nothing is confirmed"):
        lines(said(recorded)[2], read_trials(recorded.folder))
