"""A run survives SIGKILL at any moment: the same command goes on, to the same bits."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from nasgrow.training.records import CHECKPOINTS, DESCRIPTION, RESULT, read_metrics
from tests.processes import Program
from tests.training.runs import make_config, text_files, timeless

# Runs `nasgrow train` with a checkpoint after every step. The killer is a line of Python that plants a
# SIGKILL of the process itself at an exact place.
PROGRAM = """
import os, pathlib, signal, sys
from nasgrow.cli.main import main
from nasgrow.growth import engine
from nasgrow.training import checkpoint, loop, records, tensors
loop.CHECKPOINT_SECONDS = -1.0
def die(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)
{killer}
main()
"""

KILLERS = {
    "before training": "loop.compile_for = die",
    "while growing": "engine.grow_tensor = die",
    "just after growing": """
real = loop.grow
def grow(*args, **kwargs):
    growth = real(*args, **kwargs)
    die()
loop.grow = grow
""",
    "while the tensors are written": """
def half(tensors, path):
    with open(path, "wb") as file:
        file.write(b"half")
    die()
tensors.save_file = half
""",
    "between tensors and the rest": "checkpoint.write_text = die",
    "while the result is written": """
whole = pathlib.Path.write_text
def half(self, text, **options):
    if "result.json" in self.name:
        whole(self, text[: len(text) // 2], **options)
        die()
    return whole(self, text, **options)
pathlib.Path.write_text = half
""",
    "in the middle of a record": """
def half(path, known, record):
    with open(path, "ab") as file:
        file.write(b'{"kind": "tra')
    die()
if os.path.exists(os.path.join(sys.argv[-1], "checkpoints")): loop.append_record = half
""",
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run file beside its text."""
    folder = tmp_path_factory.mktemp("study")
    config = make_config(text_files(folder / "text"), budget={"flops": 1e7})
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    return path


def begin(study: Path, out: Path, killer: str = "", *options: str) -> Program:
    arguments = ["train", str(study), *options, "--out", str(out)]
    cache = {"NASGROW_CACHE": str(study.parent / "cache")}
    return Program(PROGRAM.format(killer=killer), arguments, out.parent, cache)


def train(study: Path, out: Path, killer: str = "") -> Program:
    program = begin(study, out, killer, "--quiet")
    program.wait()
    return program


def result_of(out: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((out / RESULT).read_text(encoding="utf-8"))
    return result


@pytest.fixture(scope="module")
def whole(study: Path) -> Path:
    """The folder of the run that nobody killed."""
    ended = train(study, study.parent / "whole")
    assert ended.wait() == 0, ended.err
    return study.parent / "whole"


def outcome(out: Path) -> tuple[Any, ...]:
    """All that a run leaves, but for what a clock measured and what dying cost."""
    result = result_of(out)
    (last,) = sorted((out / CHECKPOINTS).glob(f"step-{result['steps']}.safetensors"))
    return {**result, "seconds": 0, "executed": 0}, last.read_bytes(), timeless(list(read_metrics(out)))


def test_a_killed_run_goes_on_to_the_same_bits(study: Path, whole: Path, tmp_path: Path) -> None:
    """Killed at every exact place in turn, and resumed each time until it ends."""
    parts = tmp_path / "parts"
    for name, killer in KILLERS.items():
        killed = train(study, parts, killer)
        assert killed.wait() == -signal.SIGKILL, (name, killed.err)
        assert not (parts / RESULT).exists(), name
    ended = train(study, parts)
    assert ended.wait() == 0, ended.err
    assert outcome(parts) == outcome(whole)
    assert result_of(parts)["executed"] >= result_of(whole)["executed"]
    assert not list(parts.rglob("*.tmp")), "leftovers of a killed writer"


# Saves nothing after step 1, and dies when step 5, beyond an event, has been recorded.
LATE = """
def save(folder, run, state, whole=checkpoint.save):
    if state.step <= 1: whole(folder, run, state)
checkpoint.save = save
def append(path, known, record, whole=records.append_record):
    known = whole(path, known, record)
    if record["kind"] == "train" and record["step"] == 5: die()
    return known
loop.append_record = append
"""


def test_steps_that_a_kill_repeats_are_executed_and_not_charged(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for _ in range(2):
        assert train(study, out, LATE).wait() == -signal.SIGKILL
    assert train(study, out).wait() == 0
    result = result_of(out)
    charged = {r["step"]: r["charged"] for r in read_metrics(out) if r["kind"] == "train"}
    assert result["executed"] - result["charged"] == 2 * (charged[5] - charged[1]) > 0


def test_what_is_lost_is_not_counted_twice(study: Path, tmp_path: Path) -> None:
    """The second process dies after it has counted, before it has trained."""
    out = tmp_path / "run"
    for killer in (LATE, "loop.compile_for = die"):
        assert train(study, out, killer).wait() == -signal.SIGKILL
    assert train(study, out).wait() == 0
    result = result_of(out)
    charged = {r["step"]: r["charged"] for r in read_metrics(out) if r["kind"] == "train"}
    assert result["executed"] - result["charged"] == charged[5] - charged[1]


def test_records_of_a_killed_run_are_readable(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = begin(study, out)
    try:
        deadline = time.monotonic() + 60
        while sum(1 for _ in read_metrics(out)) < 5:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert json.loads((out / DESCRIPTION).read_text(encoding="utf-8"))["run"]["seed"] == 0
    steps = [record["step"] for record in read_metrics(out)]
    assert steps == sorted(steps)
    assert train(study, out).wait() == 0


def test_ctrl_c_saves_and_says_how_to_go_on(study: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = begin(study, out)
    while not list(read_metrics(out)):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130
    assert f"stopped and saved in {out}; the same command resumes" in process.err
    assert "Traceback" not in process.err
    assert train(study, out).wait() == 0
    assert outcome(out) == outcome(whole)
    assert result_of(out)["executed"] == result_of(out)["charged"]


def test_two_processes_do_not_train_one_run(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = begin(study, out, "import time; loop.compile_for = lambda *args: time.sleep(60)")
    try:
        while not (out / DESCRIPTION).exists():
            assert process.poll() is None
            time.sleep(0.01)
        second = train(study, out)
    finally:
        process.kill()
        process.wait()
    assert second.wait() == 2
    assert second.err == f"nasgrow: {out}: another process is training this run\n"


def test_a_full_disk_is_one_line_and_the_last_good_checkpoint_is_used(
    study: Path, whole: Path, tmp_path: Path
) -> None:
    """A limit on file size stands for the full disk: writing beyond it fails just so."""
    out = tmp_path / "run"
    full = "import resource; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    full += "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))"
    stopped = train(study, out, full)
    assert stopped.wait() == 2, stopped.err
    (line,) = stopped.err.splitlines()
    assert "cannot be written" in line
    assert "Traceback" not in line
    ended = train(study, out)
    assert ended.wait() == 0, ended.err
    assert outcome(out) == outcome(whole)
