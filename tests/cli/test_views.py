"""The state of a study on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from nasgrow.cli import report
from nasgrow.cli.views import MAX_SHOWN_SHAPES, study_view
from nasgrow.study.summary import Baseline, Summary
from tests.study.test_summary import FINAL, HALF, SUMMARY


def printed(summary: Summary) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(study_view(summary, [], 1))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_only_shapes_that_were_tried_under_the_studys_budget_are_listed_and_counted() -> None:
    others = tuple(replace(HALF, name=f"mlp {number}") for number in range(MAX_SHOWN_SHAPES))
    begun = tuple(Baseline(f"heads {number}", "h=8", None, None, 0, False) for number in range(5))
    richer = tuple(replace(size, name=f"{size.name}, 2x budget", times=2.0) for size in (FINAL, HALF))
    text = printed(replace(SUMMARY, baselines=(FINAL, HALF, *others, *begun, *richer)))
    assert "and 2 more" in text, "10 shapes, of which 8 are shown"
    few = printed(replace(SUMMARY, baselines=(replace(FINAL, loss=None, tried=0), *begun, *richer)))
    assert " final " in few
    assert "heads" not in few
    assert "budget" not in few


def test_no_time_is_left_in_the_last_second() -> None:
    assert "about 1 s left" in printed(replace(SUMMARY, left=(1.0, 1.0)))
    assert " left" not in printed(replace(SUMMARY, left=(0.0, 0.2)))


def test_the_headline_of_a_report_is_wrapped_at_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=20, force_terminal=True, color_system=None)
    monkeypatch.setattr(report, "study_console", lambda: console)
    monkeypatch.setattr(report, "recorded_study", lambda path: (None, path))
    verdict = SimpleNamespace(headline="Growth won at an equal budget.")
    monkeypatch.setattr(report, "write_report", lambda *given: verdict)
    assert report.run(Path("study"), Path("here"), quiet=True) == 0
    assert isinstance(console.file, io.StringIO)
    assert [line.strip() for line in console.file.getvalue().splitlines()] == [
        "Growth won at an",
        "equal budget.",
    ]
