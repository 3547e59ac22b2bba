"""``plan``, ``train``, ``sample`` and ``export``, as a user calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml

import nasgrow
from nasgrow.cli.main import main
from nasgrow.export import trained
from nasgrow.operators import Preserve
from nasgrow.training.folder import read_run
from nasgrow.training.records import DESCRIPTION
from tests.steps import tokens_for
from tests.training.runs import SCHEDULE, make_config, text_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a run file, and a cache of its own."""
    config = make_config(text_files(tmp_path / "text"), budget={"flops": 1e7})
    text = yaml.safe_dump(config.model_dump(mode="json", exclude_none=True))
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "schedule.yaml").write_text(yaml.safe_dump(SCHEDULE), encoding="utf-8")
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["nasgrow", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert isinstance(stop.value.code, int | None)
    return stop.value.code or 0


@pytest.mark.usefixtures("folder")
def test_a_run_is_trained_shown_again_sampled_and_exported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "train", "run.yaml") == 0
    first = capsys.readouterr()
    assert first.out.startswith("validation loss ")
    (run,) = Path("runs").iterdir()
    assert str(run) in first.out

    assert call(monkeypatch, "train", "run.yaml", "--json") == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["status"] == "finished"
    assert f"{again['validation']:.4f}" in first.out

    assert call(monkeypatch, "sample", str(run), "--prompt", "grow", "--tokens", "20") == 0
    text = capsys.readouterr().out
    assert text.startswith("grow")
    assert call(monkeypatch, "sample", str(run), "--prompt", "grow", "--tokens", "20") == 0
    assert capsys.readouterr().out == text

    assert call(monkeypatch, "export", str(run), "--to", "model") == 0
    assert {path.name for path in Path("model").iterdir()} == {
        "model.safetensors",
        "shape.json",
        "tokenizer.json",
    }
    loaded, original = nasgrow.load("model"), trained(run).model
    assert loaded.shape == original.shape
    assert loaded.variant == original.variant
    for other in (str(run), "text"):
        assert call(monkeypatch, "export", str(run), "--to", other) == 2
        assert f"{other}: holds what is not an exported model's (" in capsys.readouterr().err
    tokens_bs = tokens_for(loaded.shape)
    assert torch.equal(loaded(tokens_bs), original(tokens_bs))


@pytest.mark.usefixtures("folder")
def test_json_lines_tell_progress_and_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "train", "run.yaml", "--json", "--seed", "3") == 0
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert lines[0]["step"] >= 1
    assert lines[-1]["charged"] <= 1e7
    assert captured.err == ""
    (run,) = Path("runs").iterdir()
    assert read_run(run).config.seed == 3
    described = json.loads((run / DESCRIPTION).read_text(encoding="utf-8"))
    assert described["identity"] == read_run(run).identity
    assert set(described["machine"]) >= {"device", "threads", "versions", "commit"}


@pytest.mark.usefixtures("folder")
def test_a_plan_adds_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "plan", "run.yaml", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["stages"]) == 3
    spent = sum(stage["flops"] for stage in plan["stages"])
    assert spent <= plan["budget"] == 1e7
    assert all(stage["seconds"] > 0 for stage in plan["stages"])
    assert all(stage["tokens"] == 64 * stage["steps"] for stage in plan["stages"])
    assert call(monkeypatch, "plan", "run.yaml", "--no-time") == 0
    text = capsys.readouterr().out
    whole = "stage 3: h=12, N=2: 2×[p=24, heads 1×(k=6, v=4) + 1×(k=4, v=4)]"
    assert whole in text
    assert f"{plan['stages'][2]['parameters']:,}" in text


@pytest.mark.usefixtures("folder")
def test_a_plan_shows_what_operators_cost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Preserve, "flops", lambda self, *rest: 1_230_000)
    assert call(monkeypatch, "plan", "run.yaml", "--json", "--no-time") == 0
    plan = json.loads(capsys.readouterr().out)
    assert [stage["operator_flops"] for stage in plan["stages"]] == [0, 1_230_000, 1_230_000]
    assert [stage["operator"] for stage in plan["stages"]] == [None, "preserve", "preserve"]
    spent = sum(stage["flops"] + stage["operator_flops"] for stage in plan["stages"])
    assert call(monkeypatch, "plan", "run.yaml", "--no-time") == 0
    text = capsys.readouterr().out
    assert "1.23e+06" in text
    assert text.count(", grown by preserve\n") == 2
    assert f"{spent:.4g} of 1e+07 FLOPs" in text


@pytest.mark.usefixtures("folder")
def test_an_operator_that_cannot_do_the_schedule_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(Path("run.yaml").read_text(encoding="utf-8"))
    document["training"]["operator"] = "stack"
    Path("stack.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    for command in ("plan", "train"):
        assert call(monkeypatch, command, "stack.yaml") == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("nasgrow: stack.yaml: events[0].grow: operator stack cannot grow hidden")
    assert not Path("runs").exists()


@pytest.mark.usefixtures("folder")
def test_a_plan_without_time_imports_no_torch() -> None:
    code = """
import sys
from nasgrow.cli.main import cli
try:
    cli(["plan", "run.yaml", "--no-time"], standalone_mode=False)
finally:
    print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "none.yaml"], "none.yaml: cannot be read: no such file"),
        (["train", "text"], "text: cannot be read: is a directory"),
        (["train", "run.yaml", "--budget", "10"], "leaves no step for stage 1 of 3"),
        (["train", "run.yaml", "--out", "text/0.txt"], "text/0.txt: cannot be used"),
        (["plan", "run.yaml", "--budget", "-1"], "--budget: flops: input should be greater than 0"),
        (["sample", "text"], "text: is not a run's folder: it has no description.json"),
        (["export", "text"], "text: is not a run's folder"),
    ],
)
def test_mistakes_are_one_line(
    arguments: Sequence[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, *arguments) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("nasgrow: ")
    assert message in line


@pytest.mark.usefixtures("folder")
def test_a_folder_of_another_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "train", "run.yaml", "--out", "here", "--quiet") == 0
    assert call(monkeypatch, "train", "run.yaml", "--out", "here", "--seed", "9") == 2
    assert "here: holds run " in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_damaged_exports_and_runs_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "train", "run.yaml", "--out", "here", "--quiet") == 0
    assert call(monkeypatch, "export", "here", "--to", "model") == 0
    Path("model/shape.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="model: is not an exported model"):
        nasgrow.load("model")
    for path in Path("here/checkpoints").glob("*.safetensors"):
        path.write_bytes(b"")
    assert call(monkeypatch, "sample", "here") == 2
    assert "has no checkpoint that can be used" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_a_run_without_its_tokenizer_is_not_exported_by_half(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "train", "run.yaml", "--out", "here", "--quiet") == 0
    Path("here/tokenizer.json").unlink()
    assert call(monkeypatch, "export", "here", "--to", "model") == 2
    assert "here/tokenizer.json: is missing" in capsys.readouterr().err
    assert not Path("model").exists()
