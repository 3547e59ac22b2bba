"""``family``, as a user calls it, with the numbers of its report recomputed from raw records."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from scipy import stats  # type: ignore[import-untyped]

from nasgrow.study.config import PrefixCacheConfig
from nasgrow.training.step import evaluate
from tests.cli.calling import call
from tests.study.studies import study_data

SCHEDULE: dict[str, Any] = {
    "start": {"hidden": 8, "layers": 1, "mlp": 16, "heads": 1, "key": 4, "value": 4},
    "events": [{"at": 0.4, "grow": [{"expand": "hidden", "to": 16}, {"expand": "mlp", "to": 32}]}],
}
OPTIONS = ["--learning-rates", "0.006,0.012", "--seeds", "2"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a run file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path.parent / "family-cache"))
    study = study_data(tmp_path)
    run = {name: study[name] for name in ("data", "training")}
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump({"schedule": SCHEDULE, "budget": {"flops": 5e7}, **run})
    )
    return tmp_path


def records(place: Path) -> list[dict[str, Any]]:
    """What each run was, and what it came to."""
    found = []
    for folder in (place / "runs" / "run-family" / "runs").iterdir():
        described = json.loads((folder / "description.json").read_text())["run"]
        test = folder / "test.json"
        found.append(
            {
                "grown": bool(described["schedule"]["events"]),
                "hidden": described["schedule"]["start"]["hidden"],
                "rate": described["training"]["learning_rate"]["peak"],
                "seed": described["seed"],
                "result": json.loads((folder / "result.json").read_text()),
                "test": json.loads(test.read_text())["test"] if test.exists() else None,
            }
        )
    return found


def test_a_family_is_planned_trained_resumed_and_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Runs of a moment are worth storing.
    monkeypatch.setattr(
        "nasgrow.experiments.sequential_runs.PrefixCacheConfig", lambda: PrefixCacheConfig(share=1e9)
    )
    assert call(monkeypatch, "family", "run.yaml", *OPTIONS, "--plan") == 0
    planned = capfd.readouterr().out
    assert "FLOPs with a shared prefix" in planned
    assert not (place / "runs").exists()

    looked = 0

    def stopping(*given: Any) -> float:
        """Evaluate, and ask for a stop in the middle of the second distinct run."""
        nonlocal looked
        looked += 1
        if looked == 16:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*given)

    with monkeypatch.context() as patch:
        patch.setattr("nasgrow.training.loop.evaluate", stopping)
        assert call(patch, "family", "run.yaml", *OPTIONS) == 130
    assert "stopped and saved; the same command resumes" in capfd.readouterr().out
    assert len(list((place / "runs").rglob("description.json"))) == 2
    assert len(list((place / "runs").rglob("result.json"))) == 1
    assert call(monkeypatch, "family", "run.yaml", *OPTIONS) == 0
    out = capfd.readouterr().out
    assert "16 of 16: size 2 from scratch" in out
    assert out.rstrip().endswith("reports/run-family/index.html")

    found = records(place)
    tuned = [one for one in found if one["test"] is None]
    fresh = [one for one in found if one["test"] is not None]
    assert {one["seed"] for one in tuned} == {0}
    assert {one["seed"] for one in fresh} == {1, 2}
    assert len(tuned) == 6, "the smallest size is the same run in the family and from scratch"

    def validation(rate: float, hidden: int, grown: bool) -> float:
        (one,) = [one for one in tuned if (one["rate"], one["hidden"], one["grown"]) == (rate, hidden, grown)]
        return float(one["result"]["validation"])

    rates = (0.006, 0.012)
    family = min(rates, key=lambda rate: validation(rate, 8, False) + validation(rate, 8, True))
    scratch = min(rates, key=lambda rate: validation(rate, 16, False))
    summary = json.loads((place / "reports/run-family/summary.json").read_text())
    small, large = summary["sizes"]
    assert [size["family_learning_rate"] for size in (small, large)] == [family] * 2
    assert large["scratch_learning_rate"] == scratch

    def tests(rate: float, hidden: int, grown: bool) -> list[float]:
        chosen = [one for one in fresh if (one["rate"], one["hidden"], one["grown"]) == (rate, hidden, grown)]
        return [one["test"] for one in sorted(chosen, key=lambda one: one["seed"])]

    ours, theirs = tests(family, 8, True), tests(scratch, 16, False)
    assert large["family_losses"] == ours
    assert large["scratch_losses"] == theirs
    assert small["family_losses"] == tests(family, 8, False)
    interval = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert large["difference"] == pytest.approx(fmean(ours) - fmean(theirs))
    assert (large["low"], large["high"]) == (pytest.approx(interval.low), pytest.approx(interval.high))

    compute = summary["compute"]
    charged = {(one["hidden"], one["grown"]): one["result"]["charged"] for one in found}
    assert compute["from_scratch"] == charged[8, False] + charged[16, False]
    assert compute["members_by_themselves"] == charged[8, False] + charged[8, True]
    assert compute["prefix_shared"] == charged[8, False] + large["own_flops"]
    assert compute["prefix_shared"] == pytest.approx(charged[8, False] + 0.6 * 5e7, rel=0.05)
    assert compute["saved"] == 1 - compute["prefix_shared"] / compute["from_scratch"]
    assert compute["executed_here"] == sum(one["result"]["executed"] for one in found)
    branched = [one["result"] for one in found if one["grown"] and one["seed"]]
    assert {one["executed"] for one in branched} == {large["own_flops"]}, "the shared prefix is trained once"
    assert summary["headline"].startswith(
        f"Training one model of each of 2 sizes takes {compute['saved']:.0%} less"
    )
    with (place / "reports/run-family/table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["family_loss"]) for row in rows] == pytest.approx(
        [fmean(small["family_losses"]), fmean(ours)]
    )
    page = (place / "reports/run-family/index.html").read_text()
    assert page.count("<svg ") == 3
    assert "Few seeds: only 2" in page
    assert "<h1>run-family</h1>" in page

    assert call(monkeypatch, "family", "run.yaml", *OPTIONS, "--budget", "6e7") == 2
    assert capfd.readouterr().err == "nasgrow: runs/run-family: holds another family; choose another --name\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--budget", "1e6"],
            "run.yaml: events[0].at: the budget of 1e+06 FLOPs leaves no step for stage 2 of 2",
        ),
        (["--name", "a b"], "--name: must consist of letters, digits, '.', '_' and '-', not 'a b'"),
        (["--to", "."], ".: holds a file that no report has (run.yaml); choose another folder with --to"),
        (["--learning-rates", "fast"], "must be numbers above 0, separated by commas, not 'fast'"),
    ],
)
def test_what_cannot_be_is_refused(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    assert call(monkeypatch, "family", "run.yaml", *options) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert message in line
    assert not (place / "runs" / "run-family").exists()


def test_a_schedule_without_events_has_no_family(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "still.yaml").write_text(yaml.safe_dump({"start": SCHEDULE["start"]}))
    assert call(monkeypatch, "family", "still.yaml") == 2
    assert "still.yaml: schedule: has no event, so there is one size only" in capfd.readouterr().err
