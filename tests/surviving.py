"""Studies whose processes are killed, and what they come to if nothing is."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import pytest

from nasgrow.study.config import load_study
from nasgrow.study.storage import DATABASE
from nasgrow.study.store import study_name
from nasgrow.study.study import open_study
from nasgrow.study.study_folder import KnownStudy, read_study
from nasgrow.study.trials import RUNS, TRIAL_KINDS
from nasgrow.training.records import read_metrics, read_result
from tests.processes import WORKER, Program
from tests.study.studies import SPACE, write_study

# Driver and workers alike, who are forked from it. Until the file `go` is there runs are slow: what is to
# happen to them does, short as they are.
PROGRAM = """
import os, time
from pathlib import Path
from nasgrow.cli import live_view
from nasgrow.cli.main import main
from nasgrow.executors import local
from nasgrow.training import loop
from tests.processes import forking
loop.CHECKPOINT_SECONDS = 0.1
live_view.draw_curve = lambda folder, path: path.write_bytes(b"")
backward = loop.backward

def slowly(*given):
    if not Path("go").exists():
        time.sleep(float(os.environ.get("STEP_SECONDS", "0.05")))
    return backward(*given)

loop.backward = slowly
local.subprocess = forking({worker!r})
main()
"""
TIMES = 0.2, 0.3, 0.5
"""When each trial grows: all that is tried, so that nothing depends on the order in which trials end."""

FOLDER = Path("runs/tiny")
PATIENCE = 120.0

Losses = Mapping[tuple[str, str], list[float | None]]
"""The losses of each trial, by kind and parameters."""


def surviving_study(folder: Path, **changes: Any) -> Path:
    """A study file whose runs last a few seconds each until the file `go` is there."""
    known = {f"both at {at}": {"start": 0.5, "at.1": at, "at.2": at} for at in TIMES}
    return write_study(
        folder,
        budget={"flops": 6e7},
        training={"context": 16, "batch_tokens": 64, "evaluation_tokens": 64, "final_tokens": 128},
        space={**SPACE, "known": known},
        trials=len(TIMES),
        tune={"learning_rate.peak": ["x0.5", "x1"]},  # two baselines at once
        **changes,
    )


@cache
def undisturbed() -> Losses:
    """The losses of the study if nothing happens to it."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        patch.chdir(folder)
        patch.setenv("NASGROW_CACHE", str(folder / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("NASGROW_STORAGE", raising=False)
        go()
        finish(search(surviving_study(folder)))
        return losses(read_study(FOLDER))


def losses(known: KnownStudy) -> Losses:
    """The losses of each trial, which is there once."""
    trials = [trial for kind in TRIAL_KINDS for trial in known.trials[kind].values()]
    found = {(str(trial.kind), json.dumps(trial.parameters)): trial.losses for trial in trials}
    assert len(found) == len(trials)
    return found


def search(study: Path, fault: str = "", everywhere: str = "") -> Program:
    """Starts `nasgrow search` with two workers.

    Args:
        study: The study's file.
        fault: A program that each worker runs first.
        everywhere: A program that the driver runs first, before workers are forked from it.
    """
    code = everywhere + PROGRAM.format(worker=fault + WORKER)
    return Program(code, ["search", study.name, "--workers", "2", "--json"], study.parent)


def go() -> None:
    """Let runs be as fast as they can be."""
    Path("go").touch()


def workers(driver: Program) -> list[int]:
    """The workers that a driver has started and that live, by their numbers."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(encoding="utf-8").rsplit(")", 1)[1].split()
            parent, session = int(fields[1]), int(fields[3])
            if parent == driver.pid and session == int(stat.parent.name) and fields[0] != "Z":
                found.append(session)  # those that wait for an order have no session of their own
    return sorted(found)


def alive(pid: int) -> bool:
    """Whether a process is there, and not only its number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(what: Callable[[], object], driver: Program | None = None, seconds: float = PATIENCE) -> None:
    """Wait for something to come true while a driver runs."""
    deadline = time.monotonic() + seconds
    while not what():
        assert driver is None or driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def training_begun() -> bool:
    """Whether two runs are past a checkpoint and have no result yet."""
    runs = [*(FOLDER / RUNS).glob("*")]
    return sum(any(run.glob("checkpoints/*.json")) and not (run / "result.json").exists() for run in runs) > 1


def statuses() -> list[str]:
    """The status of each trial."""
    trials = read_study(FOLDER).trials
    return [trial.status for kind in TRIAL_KINDS for trial in trials[kind].values()]


def finish(driver: Program) -> dict[str, Any]:
    """Wait for the end; returns the summary."""
    out, errors = driver.communicate(PATIENCE)
    assert driver.returncode == 0, errors
    assert "Traceback" not in errors
    assert "Warning" not in errors
    summary: dict[str, Any] = json.loads(out.splitlines()[-1])
    return summary


def assert_whole(expected: Losses, summary: Mapping[str, Any]) -> None:
    """Every trial ended once with the loss that it has undisturbed; records and Optuna say the same."""
    known = read_study(FOLDER)
    assert known.state == "ended"
    assert losses(known) == expected
    assert set(statuses()) == {"finished"}
    assert summary["counts"]["ended"] == sum(not trial.tunes for trial in known.trials["search"].values())
    study, _ = open_study(FOLDER)
    assert study.config == load_study(FOLDER)
    storage = f"sqlite:///{FOLDER / DATABASE}"
    executed: dict[str, int] = {}
    for kind in ("baseline", "search"):
        shown = optuna.load_study(study_name=study_name(study, kind), storage=storage).trials
        of_ours = {trial.number: trial for trial in shown if trial.number in known.trials[kind]}
        others = {trial.state.name for trial in shown if trial.number not in of_ours}
        assert others <= {"FAIL"}, "what a driver began and did not record has failed"
        for number, trial in known.trials[kind].items():
            assert of_ours[number].value == trial.loss
            assert of_ours[number].intermediate_values == {
                round(100 * at): loss for at, loss in trial.evaluations
            }
            names = [
                one.filename
                for one in optuna.artifacts.get_all_artifact_meta(
                    of_ours[number], storage=optuna.storages.RDBStorage(storage)
                )
            ]
            assert sorted(names) == ["curve.png", "schedule.yaml"]
            for run, flops in trial.runs.items():
                executed[run] = executed.get(run, 0) + flops
    for run, flops in executed.items():
        assert flops == read_result(FOLDER / RUNS / run).executed, "all that was spent is accounted for once"
        assert [record["kind"] for record in read_metrics(FOLDER / RUNS / run)].count("final") == 1
    assert not [*FOLDER.rglob("*.tmp")]


def kill(pid: int, number: int) -> None:
    """Send a signal to a process, if it is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
