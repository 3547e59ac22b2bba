"""Whole reports, of studies in every state."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest

from nasgrow import config
from nasgrow.report import write
from nasgrow.report.findings import find
from nasgrow.report.markdown import FIGURES
from nasgrow.report.publish import put
from nasgrow.report.winner import winner
from nasgrow.report.write import REPORT_FILES, WINNER, write_report
from nasgrow.study.study import recorded_study
from nasgrow.study.trials import Status, read_trials, write_trial
from nasgrow.training.records import TEST
from nasgrow.training.run import Run
from tests.cli.calling import call
from tests.report.pages import said, section, written
from tests.report.studies import (
    FINAL_ALONE,
    FINGERPRINT,
    FIXED,
    GROWN,
    LATER,
    MACHINE,
    VOCAB,
    Recorded,
    usual,
    with_budgets,
)


def test_a_report_holds_all_of_its_files(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    page, markdown, summary = written(recorded, tmp_path / "r")
    assert {path.name for path in (tmp_path / "r").iterdir()} == REPORT_FILES | {FIGURES, WINNER}
    events = pd.read_csv(tmp_path / "r" / "events.csv")
    assert [*zip(events["trial"], events["event"], events["change"], strict=True)] == [
        ("search 1", 0, 1e-7),
        ("search 1", 1, 1e-7),
        ("search 2", 0, 1e-7),
    ]
    figures = {path.stem for path in (tmp_path / "r" / "figures").glob("*.svg")}
    assert figures == {path.stem for path in (tmp_path / "r" / "figures").glob("*.png")}
    assert {
        "loss-over-compute",
        "staircases",
        "timeline",
        "tuning",
        "first-grown",
        "progress",
        "events",
    } <= figures
    assert page.count("<svg ") == len(figures)
    assert len(page) < 5e6
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names)), "figures do not share names"
    assert set(re.findall(r"\(figures/([a-z-]+)\.png\)", markdown)) == figures
    for sentence in summary["verdict"]["sentences"]:
        assert escape(sentence) in page
    assert summary["verdict"]["headline"] in markdown
    assert not re.search(r"https?://(?!www\.w3\.org)", page), "works offline"
    assert page.count("<script>") == 1


def three(folder: Path, kind: str, **changes: Any) -> Recorded:
    """A study with one trial of each status."""
    recorded = Recorded(folder, sampler={"kind": kind}, **changes)
    statuses: tuple[Status, ...] = "finished", "pruned", "diverged"
    for number, status in enumerate(statuses):
        loss = 2.0 if status == "finished" else None
        recorded.add("search", number, GROWN, [loss], status=status)
    return recorded


def test_trials_that_are_paused_have_not_ended(tmp_path: Path) -> None:
    cases = (
        ("tree", 2, "(1 diverged; besides 1 pruned, 1 paused)", "1 pruned trial and 1 paused trial"),
        ("tpe", 3, "(1 pruned, 1 diverged; besides 1 paused)", "1 paused trial"),
    )
    for kind, ended, counted, besides in cases:
        recorded = three(tmp_path / kind, kind, trials=9)
        recorded.add("search", 3, LATER, [None], status="paused")
        recorded.add("search", 4, LATER, [None], status="running")
        page, _, summary = said(recorded)
        assert f"{ended} of 9 search trials {counted}, 0 baseline runs" in page
        assert f"The search has not ended: {ended} of 9 trials are recorded, and {besides}." in page
        assert (summary["trials"]["search"], summary["trials"]["paused"]) == (ended, 1)
        assert summary["integrity"]["pruned"] == 1


def test_a_search_that_has_spent_its_compute_has_ended_with_fewer_trials(tmp_path: Path) -> None:
    for name, kind, changes in (
        ("tree", "tree", {"trials": 3}),
        ("flops", "tpe", {"trials": 9, "total_flops": 3 * 8e7}),
        ("hours", "tpe", {"trials": 9, "hours": 0.01}),
    ):
        page, _, summary = said(three(tmp_path / name, kind, **changes))
        assert "The search has not ended" not in page
        assert summary["trials"]["search"] == (2 if kind == "tree" else 3)
    page, _, _ = said(three(tmp_path / "s", "tpe", trials=9, total_flops=4 * 8e7, hours=1.0))
    assert "The search has not ended: 3 of 9 trials are recorded." in page


def test_tables_hold_every_run(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    recorded.confirm("search 1", GROWN, [1.8, 1.81])
    written(recorded, tmp_path / "r")
    frame = pd.read_parquet(tmp_path / "r" / "runs.parquet")
    with (tmp_path / "r" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    trials = [json.loads(path.read_text()) for path in sorted((recorded.folder / "trials").iterdir())]
    expected = [
        (run, loss) for trial in trials for run, loss in zip(trial["runs"], trial["losses"], strict=True)
    ]
    assert list(zip(frame["run"], frame["validation"], strict=True)) == expected
    assert [(row["run"], float(row["validation"])) for row in rows] == expected
    assert frame["test"].dropna().tolist() == [1.8, 1.81]
    assert set(frame["first_dimensions"].dropna()) == {"hidden, mlp", "layers"}


def test_the_winner_is_a_run_file_of_the_same_run(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    written(recorded, tmp_path / "r")
    run = Run.resolve(
        config.load_run(tmp_path / "r" / "best-schedule.yaml"), vocab=VOCAB, fingerprint=FINGERPRINT
    )
    (best,) = json.loads((recorded.folder / "trials" / "search-00001.json").read_text())["runs"]
    assert run.identity == best


def test_an_empty_study_says_what_is_missing(tmp_path: Path) -> None:
    page, _, summary = said(Recorded(tmp_path / "s"))
    assert summary["verdict"]["headline"] == "No answer yet: no schedule that grows has finished."
    for title, missing in {
        "Verdict": "There is nothing to judge yet",
        "Confirmation": "Nothing is confirmed yet",
        "Loss over compute": "No curve yet",
        "The best schedules": "No trial of the search has finished",
        "Baselines": "No baseline has finished",
        "What matters": "No heat map",
        "The search": "No progress to show",
        "Events": "No event is recorded",
    }.items():
        assert missing in section(page, title)
    assert "<img" not in page


def test_an_empty_study_is_written_without_a_winner(tmp_path: Path) -> None:
    written(Recorded(tmp_path / "s"), tmp_path / "r")
    assert {path.name for path in (tmp_path / "r").iterdir()} == REPORT_FILES | {FIGURES}
    assert len(pd.read_parquet(tmp_path / "r" / "runs.parquet")) == 0


def test_a_running_study_says_how_far_it_is(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "s", trials=40)
    recorded.baselines({"final": (2.0, 1.9)})
    recorded.add("search", 0, GROWN, [1.8])
    recorded.add("search", 1, LATER, [1.83])
    (recorded.folder / "trials" / "search-00001.json").unlink()
    page, _, summary = said(recorded)
    weak = section(page, "What weakens this")
    assert "The search has not ended: 1 of 40 trials are recorded." in weak
    assert "1 run started, but did not finish or left no record." in weak
    assert weak.count("The best learning rate of the baseline final is the lowest or the highest of 2") == 1
    assert "The search of fixed shapes executed 0 FLOP, the search of schedules 80 MFLOP" in weak
    assert summary["trials"]["unfinished_runs"] == 1


def test_a_study_without_baselines_compares_with_nothing(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "s")
    recorded.add("search", 0, GROWN, [1.8])
    page, _, summary = said(recorded)
    assert summary["verdict"]["headline"] == (
        "Candidate, not a verdict: there is no fixed shape to compare with yet."
    )
    assert summary["verdict"]["comparisons"] == []
    assert "No baseline has finished" in section(page, "Baselines")


def test_damaged_records_are_named_and_left_out(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    trials = recorded.folder / "trials"
    (best,) = json.loads((trials / "search-00001.json").read_text())["runs"]
    (other,) = json.loads((trials / "search-00002.json").read_text())["runs"]
    (trials / "search-00000.json").write_text('{"kind": "sea')
    broken = json.loads((trials / "baseline-00000.json").read_text())
    (trials / "baseline-00000.json").write_text(json.dumps({**broken, "losses": "many"}))
    (recorded.folder / "runs" / best / "metrics.jsonl").write_text("no json\n")
    (recorded.folder / "runs" / best / "description.json").unlink()
    (recorded.folder / "runs" / other / "result.json").write_text('{"status": "finished", "seconds": "many"}')
    (recorded.folder / "runs" / other / "description.json").write_text('{"machine": 3, "run": []}')
    page, _, summary = said(recorded)
    assert summary["damaged"] == [
        "trials/baseline-00000.json: is damaged",
        "trials/search-00000.json: is damaged",
        f"runs/{best}/description.json: is missing",
        f"runs/{best}/metrics.jsonl: is damaged",
        f"runs/{other}/result.json: is damaged",
        f"runs/{other}/description.json: is damaged",
    ]
    weak = section(page, "What weakens this")
    assert "leaves out 6 unreadable records" in weak
    for line in summary["damaged"]:
        assert line in weak
    assert summary["trials"]["search"] == 2
    assert "How much compute that saves is not known" in section(page, "Verdict")


@pytest.mark.parametrize("bug", [TypeError("a bug"), ValueError("a bug"), KeyError("a bug")])
def test_a_bug_is_no_damage(bug: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise bug

    recorded = usual(tmp_path / "s")
    found = find(recorded.study, recorded.folder)
    monkeypatch.setattr("nasgrow.report.winner.read_run", broken)
    with pytest.raises(type(bug), match="a bug"):
        winner(found.records, found.verdict)
    for name in ("Trajectory", "operator_from"):
        with monkeypatch.context() as patch:
            patch.setattr(f"nasgrow.report.folder.{name}", broken)
            with pytest.raises(type(bug), match="a bug"):
                find(recorded.study, recorded.folder)


def test_a_line_that_was_cut_short_is_no_damage(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    (run,) = json.loads((recorded.folder / "trials" / "search-00001.json").read_text())["runs"]
    with (recorded.folder / "runs" / run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "evalu')
    assert said(recorded)[2]["damaged"] == []


@pytest.mark.parametrize("cut", [lambda text: text[: len(text) // 2], lambda text: text + "\0" * 8 + "\n"])
def test_a_finished_run_whose_records_are_cut_is_named(tmp_path: Path, cut: Callable[[str], str]) -> None:
    recorded = usual(tmp_path / "s")
    (run,) = json.loads((recorded.folder / "trials" / "search-00001.json").read_text())["runs"]
    metrics = recorded.folder / "runs" / run / "metrics.jsonl"
    metrics.write_text(cut(metrics.read_text()))
    page, _, summary = said(recorded)
    assert summary["damaged"] == [f"runs/{run}/metrics.jsonl: is damaged"]
    assert summary["damaged"][0] in section(page, "What weakens this")


def test_a_pruned_run_with_a_damaged_line_is_read_without_it(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    (run,) = recorded.add("search", 3, LATER, [None], status="pruned", rate=0.003).runs
    with (recorded.folder / "runs" / run / "metrics.jsonl").open("ab") as file:
        file.write(bytes(8) + b"\n")
    found = find(recorded.study, recorded.folder).records
    assert found.damaged == []
    assert len(found.curves[run].loss) == 20


def test_half_of_a_character_does_not_keep_a_report_from_being_written(tmp_path: Path) -> None:
    """Names of machines come from elsewhere, and so do names of files."""
    recorded = usual(tmp_path / "s")
    recorded.add("search", 3, LATER, [1.7], rate=0.003, machine={**MACHINE, "device": "chip \ud800"})
    (recorded.folder / "trials" / os.fsdecode(b"search-\xff.json")).write_text("{}")
    page, markdown, summary = written(recorded, tmp_path / "r")
    for text in (page, markdown):
        assert "chip ?, 2 cores" in text
        assert "search-?.json: is damaged" in text
    assert summary["trials"]["search"] == 4
    assert "chip ?, 2 cores, Linux" in set(pd.read_parquet(tmp_path / "r" / "runs.parquet")["machine"])


def test_names_are_text_wherever_they_stand(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    evil = '<img src=x onerror="alert(1)"> & $\\frac{ | *bold* `code`'
    recorded.add("search", 3, LATER, [1.7], name=evil, rate=0.003)
    page, markdown, summary = said(recorded)
    assert evil not in page
    assert escape(evil) in page
    assert "<img src=x" not in markdown
    assert "\\*bold\\*" in markdown
    assert summary["verdict"]["schedule"]["title"] == f"search 3 ({evil})"
    (cell,) = [line for line in markdown.splitlines() if line.startswith("| 1 |")]
    assert len(re.findall(r"(?<!\\)\|", cell)) == 8, "the name does not break the table"


def test_events_that_changed_the_function_are_named(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    recorded.add("search", 3, LATER, [1.9], change=3e-3, rate=0.003)
    page, _, summary = said(recorded)
    assert summary["integrity"]["largest_change"] == 3e-3
    assert summary["integrity"]["broken"] == ["search 3, event 1 at 60% (layers): 3.0e-03"]
    assert "search 3, event 1 at 60% (layers): 3.0e-03" in section(page, "Integrity")
    assert "Growing changed the function by more than 0.0001 at 1 event." in section(
        page, "What weakens this"
    )


def test_an_operator_that_preserves_nothing_breaks_nothing(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    (event,) = LATER["events"]
    recorded.add("search", 3, {**LATER, "events": [{**event, "operator": "stack"}]}, [1.7], change=0.3)
    page, _, summary = said(recorded)
    state = summary["integrity"]
    assert (state["broken"], state["largest_change"], state["largest_other"]) == ([], 1e-7, 0.3)
    told = section(page, "Integrity")
    assert "1.0e-07 of the largest logit, over 3 events" in told
    assert "3.0e-01 of the largest logit, over 1 event" in told
    found = find(recorded.study, recorded.folder)
    assert list(found.records.events["operator"]) == ["preserve", "preserve", "preserve", "stack"]
    best = winner(found.records, found.verdict)
    assert best is not None
    (tmp_path / "best-schedule.yaml").write_text(best)
    read = config.load_run(tmp_path / "best-schedule.yaml")
    assert [str(event.operator) for event in read.schedule.events] == ["stack"]


def test_an_event_after_which_logits_were_no_numbers_is_named(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    recorded.add("search", 3, LATER, [None], status="diverged", rate=0.003)
    (run,) = json.loads((recorded.folder / "trials" / "search-00003.json").read_text())["runs"]
    metrics = recorded.folder / "runs" / run / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "event":
            line.update(loss_after=None, change=None)
            del line["operator"]  # as in records from before they named it
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert said(recorded)[2]["integrity"]["broken"] == ["search 3, event 1 at 60% (layers): nan"]


def test_what_else_weakens_a_claim_is_listed(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s", sampler={"kind": "tpe"})
    other = {**MACHINE, "device": "another processor", "commit": "0123456789ab-dirty"}
    recorded.add("search", 3, LATER, [None], status="diverged", rate=0.003, machine=other)
    recorded.add("search", 4, LATER, [None], status="pruned", rate=0.012)
    recorded.confirm("search 1", GROWN, [1.8, 1.81])
    recorded.confirm("baseline 1", FINAL_ALONE, [1.9, 1.91], first=10)
    page, _, summary = said(recorded)
    weak = section(page, "What weakens this")
    assert "Few seeds: only 2 for each of the models compared" in weak
    assert "The best fixed shape of the search, hidden 8, is not confirmed." in weak
    assert "The best schedule was chosen from 5 trials of one search" in weak
    assert "The runs have 2 different machines" in weak
    assert "The runs have 2 different commits" in weak
    assert "uncommitted changes: 0123456789ab-dirty" in weak
    assert "A small search: 5 trials for 4 parameters" in weak
    assert (summary["integrity"]["diverged"], summary["integrity"]["pruned"]) == (1, 1)


def test_few_seeds_of_one_model_are_few_for_some(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    recorded.confirm("search 1", GROWN, [1.8, 1.81, 1.82])
    recorded.confirm("baseline 1", FINAL_ALONE, [1.9, 1.91, 1.92], first=10)
    recorded.confirm("baseline 2", FINAL_ALONE, [1.9, 1.91], first=20, rate=0.012)
    page, _, _ = said(recorded)
    assert "Few seeds: only 3 for each of the models compared" in page
    recorded = with_budgets(tmp_path / "b", [1.8] * 3, {0.5: [2.0] * 2, 1.0: [1.9] * 3, 2.0: [1.7] * 3})
    page, _, _ = said(recorded)
    assert "Few seeds: only 2 for some of the models compared" in page


def times_said(folder: Path, times: dict[str, float], schedule: dict[str, Any]) -> list[str]:
    """Return the weaknesses of the times of the best schedule in a study with these times."""
    space = {"kind": "compound", "start": [1, 0.5], "events": 2, "times": times}
    recorded = Recorded(folder, space=space)
    recorded.add("search", 1, schedule, [1.8])
    weak: list[str] = said(recorded)[2]["integrity"]["weaknesses"]
    return [one for one in weak if "time searched" in one]


def test_a_best_schedule_that_grows_at_an_end_of_the_times_is_named(tmp_path: Path) -> None:
    earliest = "The best schedule grows at 20%, the earliest time searched: an earlier one may be better."
    latest = "The best schedule grows at 50%, the latest time searched: a later one may be better."
    cases: tuple[tuple[dict[str, float], list[str]], ...] = (
        ({"low": 0.2, "high": 0.5, "step": 0.1}, [earliest, latest]),
        ({"low": 0.2, "high": 0.8, "step": 0.2}, [earliest]),
        ({"low": 0.1, "high": 0.5, "step": 0.4}, [latest]),
        ({"low": 0.1, "high": 0.6, "step": 0.1}, []),
    )
    for number, (times, expected) in enumerate(cases):
        assert times_said(tmp_path / str(number), times, GROWN) == expected
    once = {"low": 0.6, "high": 1.0, "step": 0.4}
    assert not times_said(tmp_path / "once", once, LATER), "the only time is a choice of the study"


def test_listed_schedules_have_no_latest_time(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "s", space={"kind": "fixed", "schedules": {"one": GROWN, "two": LATER}})
    recorded.add("search", 1, LATER, [1.8])
    assert "time searched" not in said(recorded)[0]


def test_a_pruned_rate_is_marked_and_is_no_result(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    for number, rate in ((40, 0.006), (41, 0.012)):
        recorded.add("fixed", number, FIXED["layers 1"], [1.84 - rate], rate=rate)
    recorded.add("fixed", 42, FIXED["layers 1"], [None], rate=0.024, status="pruned")
    page, _, _ = said(recorded)
    assert "0.006, 0.012, 0.024 (pruned)" in section(page, "Baselines")
    assert "The best learning rate of the best fixed shape is the lowest or the highest of 2 settings" in page


def test_a_validation_split_that_says_the_opposite_is_named(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    recorded.confirm("search 1", GROWN, [1.80, 1.82])
    for seed, loss in enumerate((1.86, 1.88), 1):  # on validation they are below the schedule's
        recorded.add(
            "confirmation", 10 + seed, FINAL_ALONE, [1.7], test=[loss], seeds=[seed], name="baseline 1"
        )
    weak = section(said(recorded)[0], "What weakens this")
    assert (
        "On the validation split the same runs say the opposite: the schedule&#x27;s loss is 0.0900 higher"
        in weak
    )


def test_the_front_is_shown_where_two_objectives_are_searched(tmp_path: Path) -> None:
    assert "pareto.png" not in said(usual(tmp_path / "one"))[1]
    page, markdown, _ = said(usual(tmp_path / "two", objectives=["loss", "inference_flops"]))
    assert "Loss against the cost of the final model" in section(page, "The search")
    assert "(figures/pareto.png)" in markdown


def test_numbers_of_trials_add_up(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s", sampler={"kind": "tree"})
    recorded.add("search", 3, LATER, [None], status="pruned", rate=0.003)
    for number, rate in ((40, 0.003), (41, 0.006)):
        recorded.add("fixed", number, FIXED["layers 1"], [None], status="pruned", rate=rate)
    _, markdown, _ = said(recorded)
    assert "| Trials recorded | 15 (4 search trials, 8 fixed-shape trials, 3 baseline runs) |" in markdown
    assert "| Pruned | 3 (1 search trial, 2 fixed-shape trials) |" in markdown
    assert "| Diverged | 0 |" in markdown
    costs = [line.split(" | ")[:3] for line in markdown.splitlines() if line.endswith("0.05 |")]
    assert ["| all", "15", "3"] in costs


def test_the_cost_adds_up(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    page, _, summary = said(recorded)
    trials = [json.loads(path.read_text()) for path in (recorded.folder / "trials").iterdir()]
    assert summary["cost"]["executed"] == sum(trial["executed"] for trial in trials)
    hours = f"{sum(trial['seconds'] for trial in trials) / 3600:.2f}"
    assert f'<td class="words">all</td><td class="number">{len(trials)}</td>' in page
    assert f'<td class="number">{hours}</td></tr>' in section(page, "The search")


def old_report(folder: Path) -> None:
    """Something with the names of a report."""
    folder.mkdir()
    for name in REPORT_FILES:
        (folder / name).write_text("old")


def test_a_new_report_takes_the_place_of_the_old(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    old_report(tmp_path / "r")
    recorded.add("search", 3, LATER, [1.5], rate=0.003)
    assert written(recorded, tmp_path / "r")[2]["verdict"]["schedule"]["trial"] == "search 3"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "s"], "nothing is left beside it"


def test_a_report_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = usual(tmp_path / "s")
    old_report(tmp_path / "r")

    def fail(found: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(write, "summarise", fail)
    with pytest.raises(RuntimeError):
        write_report(recorded.study, recorded.folder, tmp_path / "r")
    assert {path.read_text() for path in (tmp_path / "r").iterdir()} == {"old"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "s"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds a file that no report has \(thesis.tex\)"):
        write_report(recorded.study, recorded.folder, tmp_path / "r")
    assert (tmp_path / "r" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("missing", ["summary.json", "events.csv"])
def test_a_page_of_something_else_is_not_replaced(tmp_path: Path, missing: str) -> None:
    """A comparison has no table of events, and a site that somebody wrote no summary."""
    recorded = usual(tmp_path / "s")
    old_report(tmp_path / "r")
    (tmp_path / "r" / missing).unlink()
    with pytest.raises(ValueError, match=f"r: is not a report of this kind: it has no {missing}; choose"):
        write_report(recorded.study, recorded.folder, tmp_path / "r")
    assert {path.read_text() for path in (tmp_path / "r").iterdir()} == {"old"}


def test_the_command_says_the_verdict_and_where_the_page_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    usual(tmp_path / "s")
    assert call(monkeypatch, "report", "s") == 0
    headline, path = capsys.readouterr().out.splitlines()
    assert headline.startswith("Candidate, not a verdict: growth leads")
    assert (tmp_path / path).is_file()
    assert path == os.path.join("reports", "small", "index.html")


def test_a_study_that_was_not_begun_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = Recorded(tmp_path / "s")
    file = tmp_path / "file.yaml"
    (recorded.folder / "study.yaml").rename(file)
    assert call(monkeypatch, "report", "file.yaml") == 2
    assert capsys.readouterr().err == "nasgrow: runs/small: no such study yet; start it with nasgrow search\n"


def test_reports_need_neither_torch_nor_optuna() -> None:
    code = "import sys, nasgrow.cli.compare, nasgrow.report.family.write; "
    code += "sys.exit(bool({'torch', 'optuna'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_a_study_file_that_changed_since_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = usual(tmp_path / "runs" / "small")
    file = tmp_path / "small.yaml"
    text = (recorded.folder / "study.yaml").read_text()
    file.write_text(text.replace("trials: 3", "trials: 5"))
    assert recorded_study(file)[0].config.trials == 3, "as it was begun"
    file.write_text(text.replace("80000000.0", "90000000.0"))
    with pytest.raises(ValueError, match=r"small.yaml: has changed since .*budget.flops: 8.* became 9"):
        recorded_study(file)


def test_effects_count_each_run_once_and_say_what_is_left_out(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    for number in range(3, 20):
        recorded.add("search", number, LATER, [1.85], rate=0.003)
    assert "4 distinct finished trials, and 8 are needed" in section(said(recorded)[0], "What matters")
    for number in range(20, 28):
        recorded.add("search", number, LATER, [1.85], rate=0.0001 * number)
    recorded.add("search", 28, LATER, [None], status="pruned", rate=0.5)
    page = said(recorded)[0]
    assert "12 distinct runs of 28 finished trials; 1 pruned trial left out." in section(page, "What matters")
    assert "in the order in which trials ended" in section(page, "The search")


def test_workers_that_died_are_counted(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    record = recorded.add("search", 5, LATER, [1.82], rate=0.003)
    write_trial(recorded.folder, replace(record, deaths=2))
    page, _, summary = written(recorded, tmp_path / "r")
    assert summary["integrity"]["died"] == 2
    assert "Workers that died" in section(page, "Integrity")


def test_what_confirmed_models_write_stands_side_by_side(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    recorded.confirm("search 1", GROWN, [1.8, 1.81])
    recorded.confirm("baseline 1", FINAL_ALONE, [1.9, 1.91], first=10)
    page, _, _ = said(recorded)
    assert "No samples yet" in section(page, "What the models write")
    for trial in read_trials(recorded.folder):
        if trial.kind == "confirmation":
            tested = {"test": 1.8, "prompt": "Once <b>", "sample": f"```\x1b{trial.name}"}
            folder = recorded.folder / "runs" / next(iter(trial.runs))
            (folder / TEST).write_text(json.dumps(tested))
    page, markdown, _ = said(recorded)
    shown = section(page, "What the models write")
    assert shown.count("<b>Once &lt;b&gt;</b>```\ufffd") == 2
    assert shown.index("search 1</pre>") < shown.index("baseline 1</pre>")
    assert "````text\nOnce <b>```\ufffdsearch 1\n````" in markdown


def test_a_report_that_was_killed_stops_no_later_one_with_the_same_process_number(tmp_path: Path) -> None:
    (tmp_path / f".report.{os.getpid()}.tmp").mkdir()  # in a container every process may have the number 1
    put(tmp_path / "report", lambda folder: (folder / "report.md").touch())
    assert (tmp_path / "report" / "report.md").exists()
