"""``search``, ``status``, ``confirm`` and ``plan`` of a study, as a user calls them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from nasgrow.study.best import best_schedule
from nasgrow.study.config import STUDY
from nasgrow.study.lock import driving, show
from nasgrow.study.study_folder import read_study
from tests.cli.calling import call
from tests.executors.inline import InlineExecutor
from tests.study.studies import SPACE, write_study

ONE = {"compute": 0}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a study file, whose trials are trained in threads of this process."""
    monkeypatch.setattr("nasgrow.experiments.search.LocalExecutor", InlineExecutor)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    known = {"no growth": {"start": 1}, "in two": {"start": 0.5, "at.1": 0.2, "at.2": 0.5}}
    write_study(tmp_path, trials=2, baselines=ONE, space={**SPACE, "known": known})
    return tmp_path


@pytest.mark.usefixtures("place")
def test_a_study_is_run_shown_and_continued(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def launch(*arguments: str) -> str:
        assert call(monkeypatch, *arguments, "--workers", "1") == 0
        return capfd.readouterr().out

    assert call(monkeypatch, "status", "tiny.yaml") == 2
    assert capfd.readouterr().err == "nasgrow: runs/tiny: no such study yet; start it with nasgrow search\n"

    out = launch("search", "tiny.yaml")
    assert "starting 1 worker; Ctrl-C saves and stops" in out
    assert "timing training steps on " in out, "a search measures before it trains, and says so"
    assert "2 of 2 search trials, 1 baseline run, " in out
    assert "Best schedule (trial 1), " in out
    assert "Final shape from scratch: loss" in out
    assert "a candidate, not yet a verdict." in out
    assert sorted(
        {path.name.split("-")[0] for path in Path("runs/tiny").iterdir() if path.name[0] != "."}
    ) == [
        "artifacts",
        "data.json",
        "driver.json",
        "origin.json",
        "runs",
        "steps.json",
        "study.db",
        "study.yaml",
        "trials",
    ]

    assert call(monkeypatch, "search", "tiny.yaml", "--json") == 0
    *_, line = capfd.readouterr().out.splitlines()
    summary = json.loads(line)
    assert (summary["counts"]["ended"], summary["counts"]["planned"]) == (2, 2)

    said = launch("search", "tiny.yaml", "--trials", "3", "--json")
    lines = [json.loads(line) for line in said.splitlines()]
    assert {line["kind"] for line in lines[:-1]} == {"progress"}
    assert lines[-1]["counts"]["ended"] == 3

    assert call(monkeypatch, "status", "runs/tiny", "--json") == 0
    status = json.loads(capfd.readouterr().out)
    assert status["counts"]["ended"] == 3
    assert status["workers"] == []
    assert status["executed"] < status["charged"], "no growth and the final baseline are one run"
    assert call(monkeypatch, "status", "runs/tiny") == 0
    assert "Best schedule (trial " in capfd.readouterr().out

    options = ["--top", "1", "--seeds", "2"]
    out = launch("confirm", "tiny.yaml", *options)
    assert out.count("starting 1 worker") == 1
    assert "timing training steps" not in out
    assert [f"{done} of 4 confirmation runs" in out for done in (1, 4, 5)] == [True, True, False]
    assert re.search(r"baseline 0 +2 +\d\.\d{4} +\d\.\d{4} +final", out)
    assert call(monkeypatch, "confirm", "tiny.yaml", *options, "--json") == 0
    *_, line = capfd.readouterr().out.splitlines()
    confirmations = json.loads(line)["confirmations"]
    assert [found["seeds"] for found in confirmations] == [[1], [2]] * 2
    assert call(monkeypatch, "status", "tiny.yaml") == 0
    assert "4 confirmation runs" in capfd.readouterr().out

    assert call(monkeypatch, "plan", "runs/tiny", "--no-time", "--json") == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["done"]["search"]["trials"] == 3
    assert plan["left"]["all"]["charged"] == [0, 0]
    assert call(monkeypatch, "plan", "tiny.yaml", "--no-time") == 0
    assert re.search(r"done +4 +4 ", capfd.readouterr().out)

    recorded = yaml.safe_load((Path("runs/tiny") / STUDY).read_text(encoding="utf-8"))
    assert recorded["trials"] == 3
    assert recorded["training"]["weight_decay"] == 0.1


@pytest.mark.usefixtures("place")
def test_a_study_without_results_stands_for_its_final_shape(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "train", "tiny.yaml", "--quiet") == 0
    assert capfd.readouterr().out.startswith("validation loss ")


@pytest.mark.usefixtures("place")
def test_a_python_function_as_space_reaches_the_workers(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source = """
from nasgrow.schedule import Schedule

def sample(trial, final):
    return Schedule(final), {"learning_rate.rewarm": trial.suggest_float("rewarm", 0.01, 0.1)}
"""
    Path("mine.py").write_text(source, encoding="utf-8")
    write_study(Path.cwd(), space={"python": "mine:sample"}, budget={"flops": 1.2e8}, trials=2, baselines=ONE)
    assert call(monkeypatch, "search", "tiny.yaml", "--workers", "1", "--json") == 0
    summary = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert summary["counts"]["ended"] == 2
    assert summary["best"]["events"] == 0
    assert summary["best_grown"] is None


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "none.yaml"], "none.yaml: cannot be read: no such file"),
        (["search", "text.yaml"], "text.yaml: must be a mapping of fields"),
        (["search", "tiny.yaml", "--workers", "0"], "'--workers'"),
        (["search", "tiny.yaml", "--workers", "2000"], "'--workers'"),
        (["search", "tiny.yaml", "--storage", ""], "--storage: is empty: it must be a database URL"),
        (
            ["search", "tiny.yaml", "--address", "here"],
            "--address: is only for a Ray cluster: give --engine ray too",
        ),
        (["dashboard", "tiny.yaml"], "runs/tiny: no such study yet"),
        (["search", "a\nb.yaml"], "a b.yaml: cannot be read: no such file"),
        (
            ["search", "lone.yaml"],
            "lone.yaml: is not a study: it must have the fields final (the shape) and space",
        ),
    ],
)
def test_mistakes_are_one_line_and_create_nothing(
    arguments: Sequence[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("text.yaml").write_text("just text", encoding="utf-8")
    Path("lone.yaml").write_text("trials: 3", encoding="utf-8")
    assert call(monkeypatch, *arguments) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("nasgrow: ")
    assert message in line
    assert not Path("runs").exists()


@pytest.mark.usefixtures("place")
def test_a_mistake_in_a_users_function_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("wrong.py").write_text("def sample(trial, final):\n    return 3\n", encoding="utf-8")
    write_study(
        Path.cwd(), space={"python": "wrong:sample"}, budget={"flops": 1.2e8}, trials=1, baselines=ONE
    )
    assert call(monkeypatch, "search", "tiny.yaml", "--workers", "1", "--json") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "tiny: space: python: wrong:sample must return a Schedule, or a Schedule and a dict, not 3" in line
    assert not Path("runs").exists()


@pytest.mark.usefixtures("place")
def test_help_imports_neither_torch_nor_optuna() -> None:
    code = """
import sys
from nasgrow.cli.main import cli
try:
    cli(["search", "--help"], standalone_mode=False)
finally:
    print([name for name in ("torch", "optuna", "matplotlib", "datasets") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


SMALL = {"kind": "compound", "start": [1, 0.5], "events": 1, "times": {"low": 0.3, "high": 0.5, "step": 0.2}}


@pytest.mark.usefixtures("place")
def test_a_space_with_fewer_points_than_trials_is_said_to_be_exhausted_and_exits_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told = "The search ended after 3 of 9 trials: the space has no further point to try."
    write_study(tmp_path, trials=9, baselines=ONE, space=SMALL, sampler={"kind": "tree"})
    assert call(monkeypatch, "search", "tiny.yaml", "--workers", "1") == 1
    assert told in capfd.readouterr().out
    assert call(monkeypatch, "status", "tiny.yaml") == 0
    assert told in capfd.readouterr().out
    assert call(monkeypatch, "report", "tiny.yaml") == 0
    page = Path("reports/tiny/report.md").read_text(encoding="utf-8")
    assert "The space has no further point to try: 3 of 9 trials are recorded." in page
    assert "The search has not ended" not in page
    assert call(monkeypatch, "search", "tiny.yaml", "--workers", "1", "--trials", "3") == 0


@pytest.mark.usefixtures("place")
def test_a_search_whose_trials_failed_exits_with_one_until_what_can_be_trained_again_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def short(*given: object) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("nasgrow.training.loop.backward", short)
        patch.setattr(
            "nasgrow.driver.Driver._deaths_in_a_row", property(lambda driver: 0, lambda *given: None)
        )
        assert call(patch, "search", "tiny.yaml", "--workers", "1") == 1
    lost = "These trials failed because their workers kept dying: search 0, search 1, baseline 0."
    assert lost in capfd.readouterr().out
    assert call(monkeypatch, "search", "tiny.yaml", "--workers", "1") == 1
    assert (
        "These trials failed because their workers kept dying: search 0, search 1." in capfd.readouterr().out
    )


@pytest.mark.usefixtures("place")
def test_the_next_step_is_always_printed_and_a_study_stands_for_its_best_schedule(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        assert call(monkeypatch, *arguments) == 0
        return capfd.readouterr().out

    def last(*arguments: str) -> str:
        return said(*arguments).splitlines()[-1]

    out = said("search", "tiny.yaml", "--workers", "1", "--quiet")
    assert "Ctrl-C" not in out
    assert "1 baseline run, best loss" not in out
    to_confirm = "Next: nasgrow confirm tiny.yaml   # fresh seeds, on the test split"
    assert out.splitlines()[-1] == last("status", "tiny.yaml") == to_confirm
    confirmed = said("confirm", "tiny.yaml", "--top", "1", "--seeds", "1", "--workers", "1")
    assert confirmed.splitlines()[-1] == "Next: nasgrow report tiny.yaml"
    status = said("status", "runs/tiny")
    best = best_schedule(read_study(Path("runs/tiny")).trials)
    assert best is not None
    assert "Confirmed, mean test loss of one fresh seed: schedule " in status
    assert f"({best.trial.label}) {best.loss:.4f}" in status
    assert "not yet a verdict" not in status
    assert status.splitlines()[-1] == "Next: nasgrow report runs/tiny"
    with driving(Path("runs/tiny")):  # as while more seeds are confirmed
        show(Path("runs/tiny"), "running", [], {"baselines": None, "confirming": 9})
        assert " of 9 confirmation runs" in said("status", "runs/tiny")
        found = json.loads(said("status", "runs/tiny", "--json"))
        assert found["left"][0] > 0
        assert not found["exhausted"]

    kept = {path.parts[-3] for path in Path("runs/tiny/runs").glob("*/checkpoints/*.json")}
    if best.run(Path("runs/tiny")).name in kept:
        assert call(monkeypatch, "sample", "tiny.yaml", "--tokens", "5") == 0
        sampled = capfd.readouterr()
        assert sampled.err.startswith(f"{best.trial.label}, confirmed: test loss ")
        assert call(monkeypatch, "sample", "runs/tiny", "--tokens", "5") == 0
        assert capfd.readouterr().out == sampled.out
        assert call(monkeypatch, "export", "tiny.yaml", "--to", "model") == 0
        assert Path("model/model.safetensors").is_file()
    else:
        assert call(monkeypatch, "sample", "tiny.yaml") == 2
        assert "nasgrow train runs/tiny trains it again" in capfd.readouterr().err
    capfd.readouterr()
    assert call(monkeypatch, "train", "tiny.yaml", "--budget", "4e7", "--out", "again") == 0
    assert f"{best.trial.label}, confirmed: test loss" in capfd.readouterr().err
    trained = json.loads(Path("again/description.json").read_text())["run"]["schedule"]
    assert trained == best.trial.schedule
