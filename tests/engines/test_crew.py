"""What crews of all engines have in common, and where their workers train."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nasgrow.engines import local
from nasgrow.engines.crew import FULL, REPLACEMENTS, Deaths
from nasgrow.engines.local import LocalCrew
from nasgrow.engines.standing import WORKERS, warnings_in
from nasgrow.engines.worker import device_of
from nasgrow.search.config import Resources


def test_as_many_may_die_at_once_as_there_are_in_a_cluster_that_has_grown() -> None:
    deaths = Deaths(lambda: 0)
    for size in (2, 8, 4):
        deaths.expect(size)
    for _ in range(8):
        deaths.add("a node died")
    with pytest.raises(ValueError, match=r"^workers keep dying: a node died$"):
        deaths.add("a node died")


def test_a_trial_that_ends_lets_the_count_begin_anew() -> None:
    ended = [0]
    deaths = Deaths(lambda: ended[0])
    for _ in range(3):
        for _ in range(REPLACEMENTS):
            deaths.add("it died")
        ended[0] += 1


def end(code: int) -> tuple[str, ...]:
    return "sh", "-c", f"printf 'warning: first\nnasgrow: a line\nwarning: last\n'; {ended(code)}"


def ended(code: int) -> str:
    return f"kill {code} $$" if code < 0 else f"exit {code}"


@pytest.mark.parametrize(("code", "reason"), [(FULL, "last"), (-9, "a line")])
def test_workers_that_died_or_ran_out_of_memory_are_replaced_a_few_times(
    code: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PAUSE", 0.05)
    monkeypatch.setattr(local, "COMMAND", end(code))
    crew = LocalCrew(tmp_path, 1, Resources())
    crew.start()
    with pytest.raises(ValueError, match=f"^workers keep dying: {reason}; see "):
        crew.watch(lambda: 0, lambda: None, lambda: False)
    (log,) = (tmp_path / WORKERS).iterdir()
    assert log.read_text(encoding="utf-8").count("warning: first\n") == REPLACEMENTS + 1, "all is kept"
    assert warnings_in(tmp_path) == ["warning: first", "warning: last"]


@pytest.mark.parametrize(("gpus", "seen"), [(0, ""), (0.5, "3"), (None, "3")])
def test_workers_see_no_gpu_where_no_trial_needs_one(
    gpus: float | None, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "COMMAND", ("sh", "-c", 'printf "%s" "$CUDA_VISIBLE_DEVICES"'))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    crew = LocalCrew(tmp_path, 1, Resources(gpus=gpus))
    crew.start()
    (worker,) = crew.workers
    assert worker.process.wait() == 0
    assert worker.log.read_text(encoding="utf-8") == seen


def test_without_need_of_a_gpu_workers_train_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of(Resources(gpus=0), 1) == torch.device("cpu")
    assert [device_of(Resources(gpus=0.5), index) for index in range(3)] == [
        torch.device("cuda", 0),
        torch.device("cuda", 1),
        torch.device("cuda", 0),
    ]
