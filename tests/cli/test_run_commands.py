"""``plan``, ``train``, ``sample`` and ``export``, as a user calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import nasgrow
from nasgrow.errors import UserError
from nasgrow.operators import Preserve
from nasgrow.training.records import DESCRIPTION, read_run
from nasgrow.training.resume import trained
from tests.cli.calling import call
from tests.steps import tokens_for
from tests.study.studies import study_data
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
    told = capsys.readouterr().out
    assert told.startswith("wrote model (weights, shape and tokenizer, after step ")
    assert told.endswith("); load it with nasgrow.load('model')\n")
    assert {path.name for path in Path("model").iterdir()} == {
        "model.safetensors",
        "shape.json",
        "tokenizer.json",
    }
    loaded, original = nasgrow.load("model").model, trained(run).model
    assert loaded.shape == original.shape
    assert loaded.variant == original.variant
    for other in (str(run), "text"):
        assert call(monkeypatch, "export", str(run), "--to", other) == 2
        assert f"{other}: holds a file that no exported model has (" in capsys.readouterr().err
    tokens_bs = tokens_for(loaded.variant)
    assert torch.equal(loaded(tokens_bs), original(tokens_bs))


@pytest.mark.usefixtures("folder")
def test_json_lines_tell_progress_and_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "train", "run.yaml", "--json", "--seed", "3") == 0
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert (lines[0]["step"], lines[0]["loss"]) == (0, None), "where it begins"
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
def test_a_run_of_seconds_is_trained_with_the_seconds_of_steps_that_a_plan_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(Path("run.yaml").read_text(encoding="utf-8"))

    def write(budget: object) -> None:
        Path("timed.yaml").write_text(yaml.safe_dump({**document, "budget": budget}), encoding="utf-8")

    write({"seconds": 2.0})
    assert call(monkeypatch, "train", "timed.yaml") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("nasgrow: timed.yaml: budget.step_seconds: must be the seconds of a step of each")
    assert call(monkeypatch, "plan", "timed.yaml", "--json") == 0
    budget = json.loads(capsys.readouterr().out)["budget"]
    assert len(budget["step_seconds"]) == 3

    write({"seconds": 2.0, "step_seconds": [0.1, 0.15, 0.2]})
    assert call(monkeypatch, "plan", "timed.yaml") == 0
    out = capsys.readouterr().out
    assert "2 of 2 seconds, " in out, "6 steps of a tenth, 4 of 0.15, 4 of a fifth"
    assert "budget: {'seconds': 2.0, 'step_seconds': [0.1, 0.15, 0.2]}" in out
    assert call(monkeypatch, "train", "timed.yaml", "--json") == 0
    *_, result = map(json.loads, capsys.readouterr().out.splitlines())
    assert result["steps"] == 6 + 4 + 4


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
def test_a_plan_without_time_imports_no_torch_once_its_data_is_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert call(monkeypatch, "plan", "run.yaml", "--no-time") == 0
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
@pytest.mark.parametrize(
    ("command", "file"),
    [
        (["plan", "--no-time"], "run"),
        (["plan", "--no-time"], "study"),
        (["family", "--plan"], "run"),
        (["transfer", "--scale", "2", "--plan"], "run"),
    ],
)
def test_text_that_is_not_there_is_told_by_a_plan(
    command: Sequence[str], file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(Path("run.yaml").read_text(encoding="utf-8"))
    if file == "study":
        document = study_data(Path.cwd())
    document["data"]["text"] = {"source": "files", "paths": ["none/*.txt"]}
    Path("it.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    assert call(monkeypatch, command[0], "it.yaml", *command[1:]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    pattern = str(Path.cwd() / "none/*.txt")
    assert line == f"nasgrow: it.yaml: data.text.paths: {pattern!r} matches no file"


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
    shape = Path("model/shape.json").read_text(encoding="utf-8")
    for damaged in (
        "{",
        "[" * 100_000,
        "9" * 5_000,
        "[]",
        "{}",
        "3",
        shape.replace('"vocab"', '"vocabulary"'),
    ):
        Path("model/shape.json").write_text(damaged, encoding="utf-8")
        with pytest.raises(UserError, match=r"^model: is not an exported model: "):
            nasgrow.load("model")
    Path("model/shape.json").write_text('{"vocab": 256, "context": 16}', encoding="utf-8")
    with pytest.raises(UserError, match=r"shape\.json was written by an older version of nasgrow"):
        nasgrow.load("model")
    Path("model/shape.json").write_text(shape, encoding="utf-8")
    tensors = load_file("model/model.safetensors")
    for kind in (torch.int64, torch.bool, torch.float8_e4m3fn):
        save_file({name: tensor.to(kind) for name, tensor in tensors.items()}, "model/model.safetensors")
        with pytest.raises(
            UserError,
            match=r"^model: the tensors of model\.safetensors must all have the same floating dtype, ",
        ):
            nasgrow.load("model")
    Path("model/model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"^model: is not an exported model: "):
        nasgrow.load("model")
    Path("model/model.safetensors").unlink()
    os.mkfifo("model/model.safetensors")
    with pytest.raises(UserError, match=r"^model: is not an exported model: .* is not a regular file$"):
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
