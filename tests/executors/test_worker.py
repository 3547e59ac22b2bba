"""A worker: out of memory, its driver dead, its run held by another."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from filelock import FileLock

from nasgrow.data import prepare
from nasgrow.driver import RETRIES
from nasgrow.errors import UserError
from nasgrow.executors.base import Event, Job, Progressed, TrialKey
from nasgrow.executors.worker import Setup, Worker, _Input
from nasgrow.schedule import Schedule
from nasgrow.schedulers.base import Decision
from nasgrow.study.study import open_study
from nasgrow.training import loop, step
from nasgrow.training.loop import InterruptedRunError
from nasgrow.training.runner import Runner
from tests.study.studies import Quiet, run_study, write_study


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of one baseline, in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NASGROW_STORAGE", raising=False)
    return write_study(tmp_path, trials=1)


def test_a_trial_that_runs_out_of_memory_is_resumed_and_fails_in_the_end(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has none."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory\nat frame 0"),
        MemoryError("Unable to allocate 2 GiB"),
    ]
    said = [
        "out of memory (CUDA out of memory. Tried to allocate 2 GiB): smaller",
        "out of memory (CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`): smaller",
        "out of memory ([enforce fail] DefaultCPUAllocator: can't allocate memory): smaller",
        "out of memory (Unable to allocate 2 GiB): smaller",
    ]
    assert len(full) == RETRIES + 1
    backward = step.backward

    def without_memory(*given: object) -> object:
        if full:
            raise full.pop(0)
        return backward(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "backward", without_memory)
    quiet = Quiet()
    _, _, known = run_study(study, quiet=quiet)
    for warning, words in zip(quiet.warnings, said, strict=True):
        assert warning.startswith("baseline 0: ")
        assert words in warning
    assert known.trials["baseline"][0].status == "failed"
    assert known.trials["search"][0].status == "finished"


def test_who_waits_for_another_process_that_trains_the_same_run_can_be_stopped(tmp_path: Path) -> None:
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(len(asked) > 1)
        return asked[-1]

    runner = Runner(
        tmp_path, cast(Any, SimpleNamespace(tokenizer=None)), torch.device("cpu"), print, print, stop
    )
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".lock"), pytest.raises(InterruptedRunError):
        runner.train(cast(Any, SimpleNamespace(identity="run")), print)
    assert asked == [False, False, True]


@pytest.mark.parametrize("text", ["", '{"stop": true}\n', '{"job": {"trial": {"ki'])
def test_a_worker_stops_when_its_input_ends_even_within_a_line(text: str) -> None:
    incoming = _Input(io.StringIO(text))
    assert incoming.jobs.get(timeout=60) is None
    assert incoming.reply() is None
    assert incoming.stopped.is_set()


def test_replies_arrive_in_order() -> None:
    lines = [json.dumps({"reply": decision}) for decision in ("continue", "pause")]
    incoming = _Input(io.StringIO("\n".join(lines) + "\n"))
    found = [incoming.reply() for _ in range(3)]
    assert [None if one is None else one.value for one in found] == ["continue", "pause", None]


def setup_of(path: Path) -> tuple[Setup, Job]:
    """What a worker of a study is given: a trial of two seeds, the final shape from scratch."""
    study, folder = open_study(path)
    fingerprint = prepare(study.config.data).fingerprint
    data = study.config.data.model_dump(mode="json")
    runs = tuple(study.run(Schedule(study.final), {}, seed) for seed in (0, 1))
    return Setup(str(folder), data, fingerprint, None, 0, 1), Job(TrialKey("search", 0), runs, {}, False)


def test_progress_is_that_of_all_seeds_so_that_a_later_one_is_not_taken_for_none(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nasgrow.executors.worker.PROGRESS_SECONDS", -1.0)
    setup, job = setup_of(study)
    events: list[Event] = []
    Worker(setup, events.append, lambda: False).train(job, lambda: Decision.CONTINUE)
    fractions = [event.fraction for event in events if isinstance(event, Progressed)]
    assert fractions == sorted(fractions)
    assert min(fractions) < 0.1
    assert any(0.45 < fraction < 0.55 for fraction in fractions)
    assert 0.9 < max(fractions) <= 1


def test_a_worker_whose_data_is_not_that_of_the_study_refuses_to_train(study: Path) -> None:
    setup, _ = setup_of(study)
    with pytest.raises(UserError, match=rf"data: on \S+ it is not what .* \w+, not {'0' * 16}\): its text"):
        Worker(replace(setup, fingerprint="0" * 16), print, lambda: False)
