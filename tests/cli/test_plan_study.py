"""``nasgrow plan STUDY``, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nasgrow.flops import step_flops
from nasgrow.study.config import STUDY, dump_study
from nasgrow.study.trials import TrialRecord, write_trial
from nasgrow.training.step_seconds import StepSeconds
from tests.cli.calling import call
from tests.experiments.live import small_study


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    return tmp_path


def write(place: Path, **changes: Any) -> None:
    study = small_study(place, **{"sampler": {"kind": "tpe"}, "pruner": {"kind": "asha"}, **changes})
    Path("tiny.yaml").write_text(dump_study(study.config), encoding="utf-8")


def test_a_study_file_can_be_planned(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place, tune={"learning_rate.peak": ["x0.5", "x1", "x2"]})
    assert call(monkeypatch, "plan", "tiny.yaml", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["budget"] == 8e7
    low, high = document["left"]["search"]["trials"]
    assert 4 <= low <= high, "tuning the best takes more"
    assert document["left"]["baselines"]["trials"] == [3, 6], "up to three rates more"
    low, high = document["left"]["all"]["seconds"]
    assert 0 < low < high
    assert document["memory"]["state"] == 16 * document["memory"]["parameters"]
    assert document["memory"]["saved"] > 4 * 64 * 256, "the logits alone"
    assert document["disk"]["limit"] == 1e9
    assert not Path("runs").exists(), "nothing was begun"
    assert call(monkeypatch, "plan", "tiny.yaml", "--no-time", "--budget", "9e7") == 0
    out = capsys.readouterr().out
    assert out.startswith("tiny: 9e+07 FLOPs a run\n")
    ends = (
        "Lower ends: the final shape is tuned at the listed learning rates only. Upper ends: it is tuned at 3"
    )
    assert ends in out
    assert "Points were drawn at random, 10 times; tpe searches near good points" in out
    assert "The pauses of asha were simulated 10 times, with random losses." in out
    assert "Time:" not in out


def test_what_is_done_comes_from_the_records(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place, pruner={"kind": "none"}, trials=1)
    folder = place / "runs" / "tiny"
    folder.mkdir(parents=True)
    (folder / STUDY).write_text(Path("tiny.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    known = {"start": 0.5, "at.1": 0.3, "at.2": 0.3}
    ended = TrialRecord("search", 0, "early", known, {"events": []}, "", 0.1, 1, 1, status="finished")
    ended.losses, ended.charged, ended.executed, ended.seconds = [2.0], 8 * 10**7, 8 * 10**7, 60.0
    write_trial(folder, ended)
    assert call(monkeypatch, "plan", "runs/tiny", "--no-time", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["done"]["search"] == {
        "trials": 1,
        "runs": 0,
        "charged": 8 * 10**7,
        "executed": 8 * 10**7,
        "seconds": 60.0,
    }
    assert document["left"]["search"]["charged"] == [0, 0]
    assert document["left"]["baselines"]["trials"] == [1, 1]
    assert document["left"]["search"]["seconds"] == [0, 0]
    assert document["left"]["baselines"]["seconds"] is None
    assert call(monkeypatch, "plan", "tiny.yaml", "--no-time", "--budget", "9e7") == 2
    assert "a study of this name was begun with other settings (budget.flops" in capsys.readouterr().err
    changed = yaml.safe_load(Path("tiny.yaml").read_text(encoding="utf-8")) | {"trials": 3}
    Path("tiny.yaml").write_text(yaml.safe_dump(changed), encoding="utf-8")
    assert call(monkeypatch, "plan", "tiny.yaml", "--no-time") == 0
    out = capsys.readouterr().out
    assert "all that is left" in out
    assert "Time: from the recorded times of search" in out


def test_a_plan_tells_both_currencies(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = StepSeconds("a clock", step=(0.01, 0, 0, 0, 0), evaluation=(0, 0, 0, 0, 0))
    monkeypatch.setattr("nasgrow.experiments.forecast.measure_steps", lambda *_: steps)
    write(place)
    assert call(monkeypatch, "plan", "tiny.yaml") == 0
    study = small_study(place)
    cost = step_flops(study.final, study.variant, 4)
    many = int(8e7 // cost)
    line = f"tiny: 8e+07 FLOPs a run, which take the final shape {many / 100:.3g} seconds on a clock\n"
    assert capsys.readouterr().out.startswith(line)

    write(place, budget={"seconds": 1.0})
    assert call(monkeypatch, "plan", "tiny.yaml", "--no-time") == 0, (
        "seconds have to be measured all the same"
    )
    flops = 100 * cost
    line = f"tiny: 1 seconds a run, which are {flops:.4g} FLOPs of the final shape on a clock\n"
    assert capsys.readouterr().out.startswith(line)
    assert call(monkeypatch, "plan", "tiny.yaml", "--json", "--budget", "9e7") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["budget"], document["seconds"]) == (9e7, int(9e7 * 100 // flops) / 100)
