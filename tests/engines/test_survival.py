"""A study survives SIGKILL of a worker, of the launcher and of all at once: nothing is lost or done twice."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from nasgrow.search.ledger import KINDS, Ledger
from nasgrow.search.life import reopen
from nasgrow.search.study import open_study
from tests.processes import Program
from tests.search.studies import write_study

# Launcher and workers alike, who are forked: signs of life come quickly, so that tests need not wait for
# long. Until the file `go` is there runs are slow: what is to happen to them does, short as they are.
PROGRAM = """
import time
from pathlib import Path
from nasgrow.cli import worker
from nasgrow.cli.main import main
from nasgrow.engines import local
from nasgrow.search import storage
from nasgrow.training import loop
from nasgrow.training.trunks import follow
from tests.processes import forking
storage.HEARTBEAT, storage.GRACE = 1, 3
loop.CHECKPOINT_SECONDS = 0.1
follow.PATIENCE, follow.PULSE = 3.0, 0.1
worker.draw_curve = lambda folder, path: path.write_bytes(b"")
backward = loop.backward

def slowly(*given):
    if not Path("go").exists():
        time.sleep(0.05)
    return backward(*given)

loop.backward = slowly
local.subprocess = forking({worker!r})
main()
"""
TRIALS = 4

Launch = Callable[..., Program]
Launcher = Program | subprocess.Popen[str]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study file whose runs last a few seconds each until the file `go` is there."""
    training = {"context": 16, "batch_tokens": 64, "evaluation_tokens": 64, "final_tokens": 128}
    baselines = {"shares": [], "learning_rates": [0.006]}
    budget = {"flops": 1e8}
    return write_study(tmp_path, budget=budget, training=training, trials=TRIALS, baselines=baselines)


@pytest.fixture
def launch(study: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Starts `nasgrow search` with two workers; what it is given is wrong with them."""
    monkeypatch.chdir(study.parent)
    monkeypatch.setenv("NASGROW_CACHE", str(study.parent / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    started: list[Program] = []

    def start(fault: str = "") -> Program:
        code = PROGRAM.format(worker=f"{fault}\nfrom nasgrow.cli.main import main\nmain()")
        arguments = ["search", str(study), "--workers", "2", "--json"]
        started.append(Program(code, arguments, study.parent))
        return started[-1]

    yield start
    for process in started:
        for pid in [process.pid, *workers(process)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def go(study: Path) -> None:
    """Let runs be as fast as they can be."""
    (study.parent / "go").touch()


def ledger_of(study: Path) -> Ledger:
    return reopen(*open_study(study))


def states(study: Path) -> list[str]:
    """The state of every trial of both kinds."""
    ledger = ledger_of(study)
    return [trial.state.name for kind in KINDS for trial in ledger.optuna_study(kind).trials]


def results(ledger: Ledger) -> Sequence[object]:
    """What came of every trial that was not given up with its worker, whatever their numbers."""
    trials = [trial for kind in KINDS for trial in ledger.trials(kind)]
    return sorted((str(trial.params), trial.state.name, trial.values) for trial in trials)


def workers(launcher: Launcher) -> list[int]:
    """The workers that a launcher has started and that live, by their numbers."""
    found = {}
    for out in Path("/proc").glob("[0-9]*/fd/1"):
        with suppress(OSError):
            log = Path(os.readlink(out))
            if log.parent.name == "workers" and log.stem.endswith(f"-{launcher.pid}"):
                found[log.name] = int(out.parts[2])
    return [pid for _, pid in sorted(found.items())]


def wait_for(what: Callable[[], bool], launcher: Launcher, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def training_begun(study: Path) -> bool:
    """Whether two runs are past a checkpoint and have no result yet."""
    runs = study.parent / "runs/tiny/runs"
    return (
        sum(any(r.glob("checkpoints/*.json")) and not (r / "result.json").exists() for r in runs.glob("*"))
        > 1
    )


def finish(launcher: Launcher, patience: float = 120, *, silent: bool = True) -> dict[str, Any]:
    """Wait for the end; returns the summary."""
    out, errors = launcher.communicate(timeout=patience)
    assert launcher.returncode == 0, errors
    assert not (silent and errors), errors
    summary: dict[str, Any] = json.loads(out.splitlines()[-1])
    return summary


def assert_whole(study: Path, summary: dict[str, Any]) -> None:
    """Every trial ended once, each run is trained to its end, and no process is left."""
    ledger = ledger_of(study)
    assert ledger.ended()
    assert summary["ended"] == len(ledger.trials("search")) == TRIALS
    assert len(ledger.trials("baseline")) == 2
    known = [trial.user_attrs.get("known") for trial in ledger.trials("search")]
    assert sorted(name for name in known if name) == ["half", "no growth"]
    for kind in KINDS:
        for trial in ledger.trials(kind):
            assert trial.user_attrs["status"] == "finished"
            assert set(trial.user_attrs["losses"]) == {trial.value}
    results = list((study.parent / "runs/tiny/runs").glob("*/result.json"))
    identities = {run for kind in KINDS for trial in ledger.trials(kind) for run in trial.user_attrs["runs"]}
    assert {path.parent.name for path in results} == identities


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def fall_asleep(study: Path, launcher: Launcher) -> int:
    """Stop a worker in the middle of a run.

    Not between two, nor while it writes to the database, which nobody else could use until it awakes.
    """
    folder = study.parent / "runs/tiny"

    def in_a_run(pid: int) -> bool:
        held = (os.path.realpath(link) for link in Path(f"/proc/{pid}/fd").iterdir())
        return any(name.startswith(str(folder / "runs")) and name.endswith(".lock") for name in held)

    def database_is_free() -> bool:
        with closing(sqlite3.connect(folder / "study.db", timeout=0.2)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            return True

    while True:
        wait_for(lambda: training_begun(study), launcher)
        sleeper = workers(launcher)[0]
        os.kill(sleeper, signal.SIGSTOP)
        if in_a_run(sleeper) and database_is_free():
            return sleeper
        os.kill(sleeper, signal.SIGCONT)


def test_a_killed_worker_is_replaced_and_its_trial_goes_on(study: Path, launch: Launch) -> None:
    launcher = launch()
    wait_for(lambda: training_begun(study), launcher)
    os.kill(workers(launcher)[0], signal.SIGKILL)
    go(study)
    assert_whole(study, finish(launcher))
    assert states(study).count("FAIL") == 1, "the death was noticed once"


def test_a_worker_that_sleeps_too_long_loses_its_trial_and_works_on(study: Path, launch: Launch) -> None:
    launcher = launch()
    sleeper = fall_asleep(study, launcher)
    wait_for(lambda: "FAIL" in states(study), launcher)
    go(study)
    os.kill(sleeper, signal.SIGCONT)
    assert_whole(study, finish(launcher))


def test_after_the_launcher_is_killed_the_workers_save_and_the_same_command_goes_on(
    study: Path, launch: Launch
) -> None:
    launcher = launch()
    wait_for(lambda: training_begun(study), launcher)
    orphans = workers(launcher)
    assert len(orphans) == 2
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 90
    while any(alive(pid) for pid in orphans):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "RUNNING" not in states(study), "they gave their trials back"
    assert not ledger_of(study).ended(), "nor did they work on"
    go(study)
    assert_whole(study, finish(launch()))


def test_after_all_are_killed_the_same_command_goes_on(study: Path, launch: Launch) -> None:
    launcher = launch()
    wait_for(lambda: training_begun(study), launcher)
    for pid in [launcher.pid, *workers(launcher)]:
        os.kill(pid, signal.SIGKILL)
    launcher.wait()
    assert "RUNNING" in states(study)
    go(study)
    assert_whole(study, finish(launch()))


def test_ctrl_c_saves_and_says_how_to_go_on(study: Path, launch: Launch) -> None:
    launcher = launch()
    wait_for(lambda: training_begun(study), launcher)
    launcher.send_signal(signal.SIGINT)
    _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 130
    assert errors == "stopped and saved; the same command goes on\n"
    assert not {"RUNNING", "FAIL"} & set(states(study))
    go(study)
    assert_whole(study, finish(launch()))


def test_two_launches_at_once_share_the_work(study: Path, launch: Launch) -> None:
    go(study)
    first, second = launch(), launch()
    summaries = [finish(first), finish(second)]
    for summary in summaries:
        assert_whole(study, summary)


def test_workers_that_keep_dying_end_the_launch_with_one_line(launch: Launch) -> None:
    launcher = launch("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 2
    (line,) = errors.splitlines()
    assert line.startswith("nasgrow: workers keep dying")


def test_a_workers_mistake_is_the_launchers_one_line(study: Path, launch: Launch) -> None:
    failing = "from nasgrow.training import checkpoint\n"
    failing += "def full(*args): raise ValueError('x: cannot be written: no space left on device')\n"
    failing += "checkpoint.write_text = full"
    go(study)
    launcher = launch(failing)
    _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 2
    assert errors == "nasgrow: x: cannot be written: no space left on device\n"
    assert_whole(study, finish(launch()))
