"""Worker processes of this machine: what they receive, what they leave, and how their deaths are reported."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nasgrow.executors import local
from nasgrow.executors.base import Died, Event, Failed, Finished, Job, TrialKey, Warned, event_to_json
from nasgrow.executors.local import LocalExecutor
from nasgrow.executors.worker import Setup
from nasgrow.schedulers.base import Decision

ONE, TWO = (Job(TrialKey("search", number), (), {}) for number in (1, 2))
PATIENCE = 60.0


def setup_of(gpus: int = 0, threads: int = 3) -> Setup:
    return Setup("runs", {}, "", None, gpus, threads)


def said(event: Event) -> str:
    """A command that reports an event."""
    return f"echo '{json.dumps(event_to_json(event))}'"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def start(
    monkeypatch: pytest.MonkeyPatch, logs: Path, script: str, setup: Setup | None = None, slots: int = 1
) -> LocalExecutor:
    """An executor whose workers are a shell's script."""
    monkeypatch.setattr(local, "COMMAND", ("sh", "-c", script))
    return LocalExecutor(setup or setup_of(), slots, logs)


def until(executor: LocalExecutor, count: int) -> Sequence[Event]:
    """The first events."""
    found: list[Event] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += executor.events(0.1)
    return found


@pytest.mark.parametrize(
    ("given", "gpus", "seen"),
    [
        ({}, 0, ["<> <>", "<> <>"]),
        ({"CUDA_VISIBLE_DEVICES": "3"}, 0, ["<> <>", "<> <>"]),
        ({"CUDA_VISIBLE_DEVICES": "3"}, 1, ["<3> <>", "<3> <>"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8a, GPU-2f"}, 2, ["<GPU-8a> <>", "<GPU-2f> <>"]),
        ({}, 4, ["<0> <>", "<1> <>"]),
        ({"HIP_VISIBLE_DEVICES": "5,6"}, 2, ["<> <5>", "<> <6>"]),
    ],
)
def test_each_worker_sees_one_gpu_alone(
    given: dict[str, str], gpus: int, seen: list[str], logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    script = 'printf "<%s> <%s>" "$CUDA_VISIBLE_DEVICES" "$HIP_VISIBLE_DEVICES" >&2'
    with start(monkeypatch, logs, script, setup_of(gpus), slots=2) as executor:
        executor.submit(ONE)
        executor.submit(TWO)
        until(executor, 2)
    assert [log.read_text(encoding="utf-8") for log in sorted(logs.iterdir())] == seen


@pytest.mark.parametrize(("given", "threads"), [(None, "3"), ("5", "5")])
def test_workers_have_the_threads_of_the_setup_unless_the_user_says_otherwise(
    given: str | None, threads: str, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    with start(monkeypatch, logs, 'echo "$OMP_NUM_THREADS $OMP_WAIT_POLICY" >&2') as executor:
        executor.submit(ONE)
        until(executor, 1)
    assert (logs / "worker-0.log").read_text(encoding="utf-8") == f"{threads} passive\n"


def test_workers_do_not_know_the_storage(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NASGROW_STORAGE", "postgresql://me:Quokka@host/db")
    monkeypatch.setenv("NASGROW_STORAGE_FILE", "/secret")
    monkeypatch.setenv("NASGROW_CACHE", "/cache")
    with start(monkeypatch, logs, "env | grep NASGROW >&2") as executor:
        executor.submit(ONE)
        until(executor, 1)
    assert (logs / "worker-0.log").read_text(encoding="utf-8") == "NASGROW_CACHE=/cache\n"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("kill -9 $$", "killed by signal 9"),
        ("exit 3", "ended with code 3; see {log}"),
        ("exit 1", "ended with code 1; see {log}"),
        ("exit 0", "ended with code 0; see {log}"),
    ],
)
def test_however_a_worker_ends_its_trial_has_died_and_its_log_is_kept(
    end: str, reason: str, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(monkeypatch, logs, f"echo a line >&2; {end}") as executor:
        for _ in range(2):  # the second is another process
            executor.submit(ONE)
            assert until(executor, 1) == [Died(ONE.trial, reason.format(log=logs / "worker-0.log"))]
    assert (logs / "worker-0.log").read_text(encoding="utf-8") == "a line\na line\n"


def test_what_went_wrong_is_told_once(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Failed("runs/x: is damaged", None)
    with start(monkeypatch, logs, f"{said(failed)}; exit 1") as executor:
        executor.submit(ONE)
        assert until(executor, 1) == [failed]
        assert not executor.events(0.5)
        assert not executor.pids
    assert not list(logs.iterdir()), "no log is left of who had nothing to say"


def test_a_worker_that_has_no_memory_left_gets_no_other_job(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"{said(Died(ONE.trial, 'out of memory'))}; exec sleep {PATIENCE}"  # it takes long to end
    with start(monkeypatch, logs, script) as executor:
        executor.submit(ONE)
        assert until(executor, 1) == [Died(ONE.trial, "out of memory")]
        assert not executor.pids
        executor.submit(ONE)
        assert until(executor, 1) == [Died(ONE.trial, "out of memory")]


def test_events_that_arrive_in_pieces_are_put_together(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = [Warned("ein Lichtbogen: ⚡"), Finished(ONE.trial, "finished", ())]
    text = "\n".join(json.dumps(event_to_json(event), ensure_ascii=False) for event in events) + "\n"
    pieces = [text.encode()[index : index + 30] for index in range(0, len(text.encode()), 30)]
    octal = ["".join(f"\\{byte:03o}" for byte in piece) for piece in pieces]
    script = (
        "; ".join(f"printf '{piece}'; sleep 0.02" for piece in octal) + "; read stop; read stop; read stop"
    )
    with start(monkeypatch, logs, script) as executor:
        executor.submit(ONE)
        assert until(executor, 2) == events


def test_a_reply_to_a_worker_that_has_died_does_nothing(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(monkeypatch, logs, "exit 3") as executor:
        executor.submit(ONE)
        (worker,) = executor.pids
        os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
        executor.reply(ONE.trial, Decision.CONTINUE)
        until(executor, 1)
        executor.reply(ONE.trial, Decision.CONTINUE)


def test_a_worker_that_does_not_stop_is_killed_in_the_end(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GRACE", 0.1)
    with start(monkeypatch, logs, f"{said(Warned('here'))}; exec sleep {PATIENCE}") as executor:
        executor.submit(ONE)
        until(executor, 1)
        (worker,) = executor.pids
    assert not Path(f"/proc/{worker}").exists()
