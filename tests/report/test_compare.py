"""Comparisons of recorded studies: numbers against raw records, and what is not comparable."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from scipy import stats  # type: ignore[import-untyped]

from nasgrow.report.compare.ranking import StudyComparison, compare
from nasgrow.report.compare.sections import compose
from nasgrow.report.compare.studies import entries
from nasgrow.report.compare.write import summarised, write_comparison
from nasgrow.report.figures import compare as figures
from nasgrow.report.findings import find
from nasgrow.report.html import to_html
from nasgrow.training.atomic_files import to_json
from tests.cli.calling import call
from tests.report.pages import section
from tests.report.studies import FINAL, FINAL_ALONE, GROWN, LATER, MACHINE, Recorded, usual, with_budgets


def confirmed(folder: Path, ours: Sequence[float], theirs: Sequence[float], **changes: Any) -> Recorded:
    """A study with test losses of its best schedule and of its final shape."""
    recorded = usual(folder, **{"name": folder.name, **changes})
    recorded.confirm("search 1", GROWN, ours)
    recorded.confirm("baseline 1", FINAL_ALONE, theirs, first=10)
    return recorded


def compared(*recorded: Recorded) -> StudyComparison:
    return compare("it", entries([find(one.study, one.folder) for one in recorded]))


def said(*recorded: Recorded) -> tuple[str, dict[str, Any]]:
    """The page and the summary, without drawing to files."""
    comparison = compared(*recorded)
    page, gallery = compose(comparison)
    html = to_html(page, dict.fromkeys(gallery.figures, b""))
    return html, json.loads(to_json(summarised(comparison)))


def losses_of(recorded: Recorded, candidate: str) -> list[float]:
    """The test losses of a candidate, from the raw records."""
    trials = [json.loads(path.read_text()) for path in sorted((recorded.folder / "trials").glob("*.json"))]
    return [loss for trial in trials if trial["name"] == candidate for loss in trial["test"]]


def test_searches_of_one_study_tell_how_much_searches_vary(tmp_path: Path) -> None:
    a, b = (usual(tmp_path / name, name=name) for name in "ab")
    b.add("search", 5, GROWN, [1.7], rate=0.003)
    other = usual(tmp_path / "c", name="c", sampler={"kind": "random"})
    weak = section(said(a, b, other)[0], "What weakens this")
    assert (
        "b and a are 2 searches of one study: the validation loss of their best schedules is 1.7500 on "
        "average, with a standard deviation of 0.0707 over searches." in weak
    )
    assert "searches of one study" not in section(said(a, other)[0], "What weakens this")


def test_the_lead_is_that_of_the_raw_records(tmp_path: Path) -> None:
    a = confirmed(tmp_path / "a", [1.80, 1.81, 1.83], [1.90, 1.91, 1.92])
    b = confirmed(tmp_path / "b", [1.85, 1.87, 1.86, 1.88], [1.90, 1.89, 1.93])
    page, summary = said(b, a)
    (contest,) = summary["contests"]
    ours, theirs = losses_of(a, "search 1"), losses_of(b, "search 1")
    first, second = contest["standings"]
    assert (first["study"], first["loss"]) == ("a", pytest.approx(fmean(ours)))
    assert (second["study"], second["loss"]) == ("b", pytest.approx(fmean(theirs)))
    shared = theirs[: len(ours)]  # the fourth seed is b's alone
    interval = stats.ttest_rel(ours, shared).confidence_interval(0.95)
    assert second["leader_less_this"] == {
        "value": pytest.approx(fmean(ours) - fmean(shared)),
        "low": pytest.approx(interval.low),
        "high": pytest.approx(interval.high),
    }
    assert summary["headline"] == "a is ahead: its best schedule has a lower test loss than b."
    assert contest["decided"]
    assert f"a&#x27;s is {fmean(shared) - fmean(ours):.4f} lower, 95% interval" in section(page, "Verdict")
    assert "Numbers of seeds differ: 3 (a) and 4 (b)." in section(page, "What weakens this")
    own = section(page, "Each against its own baselines")
    for one in (a, b):
        pairs = zip(losses_of(one, "search 1"), losses_of(one, "baseline 1"), strict=False)
        apart = fmean(ours - theirs for ours, theirs in pairs)
        assert f"−{abs(apart):.4f}</td>" in own


def test_the_table_of_rivals_has_the_compute_saved_and_the_seconds(tmp_path: Path) -> None:
    losses = {0.5: [2.00, 2.02, 2.01], 1.0: [1.90, 1.91, 1.92], 2.0: [1.80, 1.79, 1.81]}
    slow = with_budgets(tmp_path / "slow", [1.86, 1.87, 1.87], losses, slower=1.25)
    alone = confirmed(tmp_path / "alone", [1.80, 1.82, 1.81], [1.95, 1.96, 1.97])
    own = section(said(slow, alone)[0], "Each against its own baselines")
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", own, re.DOTALL)]
    found = {row[0]: row[7:] for row in rows if len(row) == 11}
    assert found["alone"] == ["", "", "", ""], "one budget, and no seconds"
    saved, between, ratio, apart = found[slow.study.config.name]
    times = 2 ** ((1.91 - fmean([1.86, 1.87, 1.87])) / (1.91 - 1.80))
    assert (saved, ratio) == (f"{1 - 1 / times:.0%}", "1.25")
    assert re.fullmatch(r"\d+% to \d+%", between)
    curve = 1.91 + (1.80 - 1.91) * math.log2(1.25)
    assert apart == f"−{curve - fmean([1.86, 1.87, 1.87]):.4f}", "at equal seconds"


def test_a_lead_within_the_noise_is_not_decided(tmp_path: Path) -> None:
    a = confirmed(tmp_path / "a", [1.80, 1.90, 1.85], [1.95, 1.96, 1.97])
    b = confirmed(tmp_path / "b", [1.83, 1.89, 1.86], [1.95, 1.96, 1.97])
    comparison = compared(a, b)
    assert comparison.headline == (
        "Not decided: a has the lowest test loss, but the difference from b is within the noise of seeds and "
        "text."
    )
    assert comparison.tone == "open"


def test_one_seed_allows_no_interval(tmp_path: Path) -> None:
    a, b = (confirmed(tmp_path / name, [loss], [1.95]) for name, loss in (("a", 1.8), ("b", 1.7)))
    assert compared(a, b).headline == (
        "Not decided: b has the lowest test loss, but an interval needs at least two seeds in common."
    )


def test_where_one_is_not_confirmed_candidates_are_compared_on_validation(tmp_path: Path) -> None:
    a = confirmed(tmp_path / "a", [1.5, 1.5, 1.5], [1.9, 1.9, 1.9])
    b = usual(tmp_path / "b", name="b")
    b.add("search", 3, LATER, [1.75], rate=0.003)
    page, summary = said(a, b)
    (contest,) = summary["contests"]
    assert (contest["confirmed"], contest["split"]) == (False, "validation")
    assert [(one["study"], one["loss"]) for one in contest["standings"]] == [("b", 1.75), ("a", 1.8)]
    assert contest["standings"][1]["leader_less_this"]["low"] is None
    assert summary["headline"] == ("Candidates, not a verdict: the best schedule of b leads a on validation.")
    assert "Not every study is confirmed" in section(page, "Verdict")


@pytest.mark.parametrize(
    ("changes", "name", "values"),
    [
        ({"final_tokens": 4096}, "final evaluation", "131,072 tokens (a) and 4,096 tokens (b)"),
        ({"batch_tokens": 32}, None, ""),
    ],
)
def test_losses_measured_otherwise_are_not_ranked(
    tmp_path: Path, changes: dict[str, Any], name: str | None, values: str
) -> None:
    training = {"context": 16, "batch_tokens": 64}
    a = confirmed(tmp_path / "a", [1.8, 1.81], [1.9, 1.91], training=training)
    b = confirmed(tmp_path / "b", [1.7, 1.71], [1.6, 1.61], training={**training, **changes})
    page, summary = said(a, b)
    if name is None:
        assert summary["comparable"]
        assert summary["headline"].startswith("b is ahead")
        return
    assert summary["apart"] == [name]
    assert summary["headline"] == (
        f"Not ranked: the studies differ in {name}, so their losses are not comparable. "
        "Each is compared with its baselines only."
    )
    assert f"{name} is {values}." in section(page, "What weakens this")
    assert [contest["studies"] for contest in summary["contests"]] == [["a"], ["b"]]
    assert "is ahead:" not in page
    own = section(page, "Each against its own baselines")
    assert "a: Not decided: growth beat the final shape from scratch, but 1 fixed shape" in own
    assert "b: Growth did not win" in own
    assert [len(figure.axes) for figure in _drawn(compared(a, b))] == [2, 2, 2]


def _drawn(comparison: StudyComparison) -> list[Any]:
    drawn = [figures.contenders(comparison), figures.curves(comparison), figures.progress(comparison)]
    assert all(drawn)
    return drawn


def test_other_data_is_named_by_its_fingerprint(tmp_path: Path) -> None:
    a, b, c = (confirmed(tmp_path / name, [1.8, 1.81], [1.9, 1.91]) for name in "abc")
    for path in (c.folder / "runs").glob("*/description.json"):
        path.write_text(path.read_text().replace("0123456789abcdef", "fedcba9876543210"))
    page, summary = said(a, b, c)
    assert summary["apart"] == ["data fingerprint"]
    weak = section(page, "What weakens this")
    assert "0123456789abcdef (a), 0123456789abcdef (b) and fedcba9876543210 (c)" in weak
    assert [contest["studies"] for contest in summary["contests"]] == [["a", "b"], ["c"]]
    assert "Among the comparable ones: Not decided: a has the lowest" in summary["headline"]


def test_another_budget_and_shape_are_labelled_and_plotted(tmp_path: Path) -> None:
    a = confirmed(tmp_path / "a", [1.80, 1.81], [1.9, 1.91])
    b = confirmed(tmp_path / "b", [1.70, 1.71], [1.8, 1.81], budget={"flops": 1.6e8})
    page, summary = said(a, b)
    assert summary["headline"] == (
        "b is ahead: its best schedule has a lower test loss than a, not at equal compute."
    )
    assert summary["contests"][0]["unequal"] == ["budget"]
    weak = section(page, "What weakens this")
    assert "a lead is not at equal compute: 80 MFLOP (a) and 160 MFLOP (b)." in weak
    assert "Only marks at the same budget had equal compute" in section(page, "Loss over compute")
    figure = figures.over_budget(compared(a, b))
    assert figure is not None
    (axes,) = figure.axes
    points = {
        str(line.get_label()): (
            float(np.asarray(line.get_xdata())[0]),
            float(np.asarray(line.get_ydata())[0]),
        )
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_")
    }
    assert {name: (x, round(y, 9)) for name, (x, y) in points.items()} == {
        "a: best schedule": (80.0, 1.805),
        "a: final shape": (80.0, 1.905),
        "b: best schedule": (160.0, 1.705),
        "b: final shape": (160.0, 1.805),
    }
    c = Recorded(tmp_path / "c", name="c", final={**FINAL, "mlp": 48})
    c.add("search", 0, {"start": {**FINAL, "layers": 1, "mlp": 48}, "events": LATER["events"]}, [1.6])
    headline = compared(a, c).headline
    assert headline.endswith("the best schedule of c leads a on validation, for different final shapes.")


def test_three_studies_are_ranked(tmp_path: Path) -> None:
    a, b, c = (
        confirmed(tmp_path / name, [loss, loss + 0.001], [1.9, 1.91])
        for name, loss in (("a", 1.8), ("b", 1.7), ("c", 1.75))
    )
    page, summary = said(a, b, c)
    assert [one["study"] for one in summary["contests"][0]["standings"]] == ["b", "c", "a"]
    assert summary["headline"] == "b is ahead: its best schedule has a lower test loss than c and a."
    assert "2 comparisons, each with a 95% interval" in section(page, "What weakens this")


def test_progress_is_over_executed_compute(tmp_path: Path) -> None:
    a, b = (usual(tmp_path / name, name=name) for name in "ab")
    b.add("search", 3, LATER, [None], status="pruned", rate=0.003)
    figure = figures.progress(compared(a, b))
    assert figure is not None
    lines = [line for line in figure.axes[0].get_lines() if line.get_drawstyle() == "steps-post"]
    for line, trials in zip(lines, (3, 4), strict=True):
        xs, ys = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        assert xs[-1] == pytest.approx(trials * 80), "what was pruned cost compute too"
        assert ys.tolist() == [1.95, 1.8, 1.8, 1.8]


def test_what_differs_is_listed_by_field(tmp_path: Path) -> None:
    a = usual(tmp_path / "a", name="a", sampler={"kind": "tpe"})
    b = usual(tmp_path / "b", name="b", sampler={"kind": "random"}, trials=9)
    b.add("search", 3, LATER, [1.9], machine={**MACHINE, "device": "another"}, rate=0.003)
    page, _ = said(a, b)
    differs = section(page, "What differs")
    assert (
        '<td class="words">sampler.kind</td><td class="words">tpe</td><td class="words">random</td>'
        in differs
    )
    assert '<td class="words">trials</td><td class="words">3</td><td class="words">9</td>' in differs
    assert differs.count("<tr>") == 3
    assert "The studies have different machines" in section(page, "What weakens this")


def test_damaged_and_empty_studies_are_named(tmp_path: Path) -> None:
    a, b = usual(tmp_path / "a", name="a"), usual(tmp_path / "b", name="b")
    (b.folder / "trials" / "search-00001.json").write_text("{")
    empty = Recorded(tmp_path / "c", name="c")
    page, summary = said(a, b, empty)
    weak = section(page, "What weakens this")
    assert "b: The report leaves out 1 unreadable record: trials/search-00001.json: is damaged." in weak
    assert summary["comparable"], "an empty study has no data yet that could differ"
    assert [one["study"] for one in summary["contests"][0]["standings"]] == ["a", "b"]
    assert "Without a schedule to compare: c." in section(page, "Verdict")
    nothing = compared(empty, Recorded(tmp_path / "d", name="d"))
    assert nothing.headline == "No answer yet: none has a schedule that grows and finished."
    assert "Nothing to show yet" in to_html(compose(nothing)[0], {})


def test_equal_names_are_told_apart(tmp_path: Path) -> None:
    titles = [entry.title for entry in compared(usual(tmp_path / "a"), usual(tmp_path / "b")).entries]
    assert titles == [f"small ({tmp_path}/a)", f"small ({tmp_path}/b)"]


def test_a_comparison_is_written_whole(tmp_path: Path) -> None:
    a, b = (usual(tmp_path / name, name=name) for name in "ab")
    to = tmp_path / "r"
    write_comparison([(one.study, one.folder) for one in (a, b)], "a & b", to)
    assert sorted(path.name for path in to.iterdir()) == [
        "figures",
        "index.html",
        "report.md",
        "runs.csv",
        "runs.parquet",
        "summary.json",
    ]
    assert {path.name for path in (to / "figures").iterdir()} == {
        f"{name}.{kind}"
        for name in ("contenders", "loss-over-compute", "progress")
        for kind in ("svg", "png")
    }
    runs = pd.read_parquet(to / "runs.parquet")
    assert runs["study"].value_counts().to_dict() == {"a": 12, "b": 12}
    assert len(pd.read_csv(to / "runs.csv")) == 24
    page = (to / "index.html").read_text()
    assert "<h1>a &amp; b</h1>" in page
    assert "Comparison of growth studies" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a"], "a comparison takes at least two studies"),
        (["a", "b", "a"], "a: is given twice; a study cannot be compared with itself"),
        (["a", "b", "./b/"], "b: is given twice; a study cannot be compared with itself"),
        (["a", "c.yaml"], "runs/c: no such study yet; start it with nasgrow search"),
        (["a", "none"], "none: cannot be read: no such file or directory"),
        (["a", "b", "--to", "a"], "a: holds a file that no report has (runs)"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        usual(tmp_path / name, name=name)
    (tmp_path / "c.yaml").write_text(
        (tmp_path / "a" / "study.yaml").read_text().replace("name: a", "name: c")
    )
    assert call(monkeypatch, "compare", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "reports").exists()
