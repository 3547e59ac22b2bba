"""Python spaces: a user's function, and what happens when it is wrong."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from nasgrow.config import TrainingConfig
from nasgrow.expansions import InsertLayers
from nasgrow.schedule import Event, Schedule
from nasgrow.spaces import Choices, Space, bind, load_space
from nasgrow.spaces.training import PEAK
from nasgrow.study.lock import State, show
from tests.cli.calling import call
from tests.report.studies import Recorded
from tests.spaces.asking import FINAL, PLAIN, FixedTrial
from tests.study.studies import FINAL as FINAL_SIZES
from tests.study.studies import begin_study, write_study

CODE = """
from nasgrow.expansions import InsertLayers
from nasgrow.schedule import Event, Schedule

def deep(trial, final):
    at = trial.suggest_float("at", 0.1, 0.9)
    start = final.with_layers(final.layers[:2])
    return Schedule(start, (Event(at, (InsertLayers((2, 2)),)),))

def tuned(trial, final):
    return deep(trial, final), {"moments": "carry"}

def short(trial, final):
    return Schedule(final.with_layers(final.layers[:2]))

def odd(trial, final):
    from nasgrow.expansions import GrowKeys
    from nasgrow.shape import Layer
    odd = Layer.of_heads(256, [(15, 16)] * 4)
    return Schedule(final.with_layers([odd] * 4), (Event(0.5, (GrowKeys(16),)),))

def wrong(trial, final):
    return 3

def unfair(trial, final):
    return deep(trial, final), {"final_tokens": 16}

def unnamed(trial, final):
    return deep(trial, final), {3: 1}

def pair(trial, final):
    return deep(trial, final), [1]

number = 4
"""


@pytest.fixture
def module(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A module of its own for each test, for imports are remembered."""
    name = f"space_of_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(CODE, encoding="utf-8")
    return name


def bound(name: str, folder: Path, positions: str = "learned") -> Space:
    model = load_space({"python": name}, "study.yaml: space", folder)
    again = load_space(model.model_dump(mode="json"), "study.yaml: space", Path("elsewhere"))
    assert again == model
    variant = replace(PLAIN, positions=positions)  # type: ignore[arg-type]
    return bind(again, FINAL, variant, TrainingConfig(), {PEAK: Choices([0.006])})


def test_a_function_makes_the_points(tmp_path: Path, module: str) -> None:
    path = list(sys.path)
    found = bound(f"{module}:deep", tmp_path)
    assert sys.path == path
    start = FINAL.with_layers(FINAL.layers[:2])
    expected = Schedule(start, (Event(0.3, (InsertLayers((2, 2)),)),))
    assert found.sample(FixedTrial({"at": 0.3})).schedule == expected
    assert found.sample(FixedTrial({"at": 0.3})).training == {PEAK: 0.006}, "what the study tunes"
    assert (found.settings, found.known, found.size) == ({}, {}, float("inf"))
    assert (found.smallest, found.largest, found.fixed(0.5).hidden) == (FINAL, FINAL, 32)
    tuned = bound(f"{module}:tuned", tmp_path).sample(FixedTrial({"at": 0.3}))
    assert (tuned.schedule, tuned.training) == (expected, {"moments": "carry", PEAK: 0.006})


def test_the_example_of_the_page_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "own-space.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    (tmp_path / "space_of_the_page.py").write_text(code, encoding="utf-8")
    trial = optuna.trial.FixedTrial({"depth": 3, "at": 0.3})
    found = bound("space_of_the_page:schedule", tmp_path).sample(trial)
    start = FINAL.with_layers(FINAL.layers[:3])
    assert found.schedule == Schedule(start, (Event(0.3, (InsertLayers((3,)),)),))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrong", "must return a Schedule, or a Schedule and a dict, not 3"),
        ("pair", "must return a Schedule, or a Schedule and a dict, not (Schedule("),
        ("unfair", "may return learning_rate.rewarm, "),
        ("unfair", "which can be searched, not 'final_tokens'"),
        ("unnamed", "which can be searched, not 3"),
        ("short", f"must end at the final shape {FINAL}, not at h=64, N=2"),
        ("odd", "layer 0: RoPE rotates pairs, so key sizes must be even, not 15"),
    ],
)
def test_a_function_that_returns_something_else_is_refused(
    tmp_path: Path, module: str, function: str, message: str
) -> None:
    found = bound(f"{module}:{function}", tmp_path, "rope")
    with pytest.raises(ValueError, match=rf"^python: {module}:{function}:? ") as error:
        found.sample(FixedTrial({"at": 0.3}))
    assert message in str(error.value)


def test_a_function_that_cannot_be_imported_is_refused(tmp_path: Path, module: str) -> None:
    with pytest.raises(ValueError, match=rf"^python: {module} has no function 'none'$"):
        bound(f"{module}:none", tmp_path).sample(FixedTrial({}))
    with pytest.raises(ValueError, match=rf"^python: {module} has no function 'number'$"):
        bound(f"{module}:number", tmp_path).sample(FixedTrial({}))
    with pytest.raises(
        ValueError, match=r"^python: missing_one cannot be imported: ModuleNotFoundError: No module"
    ):
        bound("missing_one:f", tmp_path).sample(FixedTrial({}))
    (tmp_path / f"{module}_broken.py").write_text("1 / 0", encoding="utf-8")
    with pytest.raises(ValueError, match=r"cannot be imported: ZeroDivisionError: division by zero$"):
        bound(f"{module}_broken:f", tmp_path).sample(FixedTrial({}))


SIZES: dict[str, Any] = {"final": {**FINAL_SIZES, "layers": 4}, "budget": {"flops": 2e9}}
NOTED = "open('ran', 'w').close()\n" + CODE


@pytest.mark.usefixtures("place")
def test_what_only_looks_at_a_study_runs_no_code_that_it_names(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / f"{module}.py").write_text(NOTED, encoding="utf-8")
    path = write_study(tmp_path, space={"python": f"{module}:deep"}, **SIZES)
    _, folder = begin_study(path)
    assert ran.exists(), "a search tries the function"
    other = Recorded(tmp_path / "runs" / "other")

    def nasgrow(*arguments: str) -> int:
        ran.unlink(missing_ok=True)
        sys.modules.pop(module, None)
        return call(monkeypatch, *arguments)

    monkeypatch.setattr("nasgrow.study.dashboard._Server.serve_forever", lambda server: None)
    for looked_at in (folder, path):
        for command in (["status"], ["report"], ["compare", str(other.folder)], ["dashboard", "--port", "0"]):
            assert nasgrow(*command, str(looked_at)) == 0, capsys.readouterr().err
            assert not ran.exists(), command
    states: tuple[State, ...] = "stopped", "ended"
    for state in states:  # a folder may say anything of itself
        show(folder, state)
        assert nasgrow("plan", "--no-time", str(folder)) == 2
        assert not ran.exists()
        assert capsys.readouterr().err.endswith("plan the study's file instead\n")
    assert nasgrow("plan", "--no-time", str(path)) == 0
    assert ran.exists()
