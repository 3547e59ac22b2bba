"""A study survives SIGKILL of a worker, of the driver and of all at once: nothing is lost or done twice."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from nasgrow.cli import report
from nasgrow.cli.search import status
from nasgrow.study.study_folder import read_study
from tests.processes import Program
from tests.surviving import (
    FOLDER,
    Losses,
    alive,
    assert_whole,
    finish,
    go,
    kill,
    search,
    statuses,
    surviving_study,
    training_begun,
    undisturbed,
    wait_until,
    workers,
)

ROUNDS = 4
"""How often something is killed at random; more find more."""

Launch = Callable[..., Program]


@pytest.fixture
def expected() -> Losses:
    """What each trial comes to if nothing happens to the study."""
    return undisturbed()


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Starts `nasgrow search` with two workers; what it is given is wrong with them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("NASGROW_STORAGE", raising=False)
    study = surviving_study(tmp_path)
    started: list[Program] = []

    def start(fault: str = "") -> Program:
        started.append(search(study, fault))
        return started[-1]

    yield start
    for process in started:
        for pid in [process.pid, *workers(process)]:
            kill(pid, signal.SIGKILL)
        process.wait()


def test_a_killed_worker_is_replaced_and_its_trial_goes_on(expected: Losses, launch: Launch) -> None:
    driver = launch()
    wait_until(training_begun, driver)
    os.kill(workers(driver)[0], signal.SIGKILL)
    go()
    assert_whole(expected, finish(driver))
    assert driver.err.count("its worker died: killed by signal 9; it is resumed") == 1
    assert report.run(FOLDER, None) == 0


def test_after_the_driver_or_all_are_killed_the_same_command_goes_on(
    expected: Losses, launch: Launch
) -> None:
    driver = launch()
    wait_until(training_begun, driver)
    orphans = workers(driver)
    assert len(orphans) == 2
    driver.kill()
    driver.wait()
    wait_until(lambda: not any(map(alive, orphans)))  # they save and end
    assert statuses() == ["running"] * 2
    assert {log.read_text(encoding="utf-8") for log in FOLDER.glob("logs/*")} == {""}
    driver = launch()
    wait_until(lambda: len(read_study(FOLDER).running) == 2, driver)
    for pid in [driver.pid, *workers(driver)]:
        os.kill(pid, signal.SIGKILL)
    driver.wait()
    go()
    driver = launch()
    assert_whole(expected, finish(driver))
    assert driver.err == ""


def test_ctrl_c_saves_and_says_how_to_go_on(expected: Losses, launch: Launch) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        driver = launch()
        wait_until(training_begun, driver)
        wait_until(lambda: len(workers(driver)) == 2, driver)  # noqa: B023
        crew = workers(driver)
        driver.send_signal(number)
        _, errors = driver.communicate()
        assert driver.returncode == 130
        assert errors == "stopped and saved; the same command resumes\n"
        assert not any(map(alive, crew))
        assert statuses() == ["running"] * 2
    go()
    assert_whole(expected, finish(launch()))


def test_a_second_driver_is_refused_in_one_line_and_a_worker_that_is_halted_only_delays(
    expected: Losses, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = launch()
    wait_until(training_begun, first)
    wait_until(lambda: len(read_study(FOLDER).running) == 2, first)
    assert status(FOLDER, True) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["state"] == "running"
    assert [one["kind"] for one in shown["workers"]] == ["baseline", "baseline"]
    second = launch()
    _, errors = second.communicate()
    assert second.returncode == 2
    (line,) = errors.splitlines()
    assert line.startswith(f"nasgrow: {FOLDER}: process {first.pid} on ")
    assert line.endswith(" is running this study already")
    halted = workers(first)[0]
    os.kill(halted, signal.SIGSTOP)
    go()
    time.sleep(2)
    os.kill(halted, signal.SIGCONT)
    assert_whole(expected, finish(first))
    assert first.err == ""


def test_workers_that_keep_dying_end_the_search_with_one_line(launch: Launch) -> None:
    driver = launch("import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n")
    _, errors = driver.communicate()
    assert driver.returncode == 2
    *warnings, line = errors.splitlines()
    assert all(one.startswith("warning: baseline ") for one in warnings)
    assert line.startswith("nasgrow: workers keep dying, so the search stops: killed by signal 9")
    assert "failed" not in statuses(), "it was no trial's fault"


def test_workers_that_end_before_they_can_say_why_are_no_riddle(launch: Launch) -> None:
    driver = launch("raise ImportError('no libc')\n")
    _, errors = driver.communicate()
    assert driver.returncode == 2
    assert errors.splitlines()[-1].startswith(
        f"nasgrow: workers keep dying, so the search stops: ended with code 1; see {FOLDER}/logs/worker-"
    )
    assert "no libc" in next(FOLDER.glob("logs/*.log")).read_text(encoding="utf-8")


FULL = """
from nasgrow.errors import UserError
from nasgrow.training import checkpoint
def full(*given): raise UserError("x: cannot be written: no space left on device")
checkpoint.write_text = full
"""
BUG = """
from nasgrow.training import loop
def bug(*given): raise ZeroDivisionError("a bug at x://me:Quokka@host/db")
loop.backward = bug
"""
OUT_OF_MEMORY = """
from pathlib import Path
from nasgrow.training import loop
import torch
train = loop.backward
def short(*given):
    if Path("once").exists():
        return train(*given)
    Path("once").touch()
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has none.")
loop.backward = short
"""


def test_a_users_mistake_that_a_worker_finds_is_one_line(launch: Launch) -> None:
    go()
    driver = launch(FULL)
    _, errors = driver.communicate()
    assert driver.returncode == 2
    assert errors == "nasgrow: x: cannot be written: no space left on device\n"


def test_a_bug_in_a_worker_is_shown_once_without_passwords(launch: Launch) -> None:
    go()
    driver = launch(BUG)
    _, errors = driver.communicate()
    assert driver.returncode == 1
    assert errors.startswith("nasgrow: a worker failed: ZeroDivisionError: a bug at x://***@host/db\n")
    assert errors.count("Traceback (most recent call last):") == 1
    assert "Quokka" not in errors


def test_a_worker_without_memory_is_replaced_once(expected: Losses, launch: Launch) -> None:
    go()
    driver = launch(OUT_OF_MEMORY)
    assert_whole(expected, finish(driver))
    (warning,) = driver.err.splitlines()
    assert "out of memory (CUDA out of memory. Tried to allocate 2 GiB): smaller" in warning


def _at_work(driver: Program) -> bool:
    return len(workers(driver)) == 2 or driver.poll() is not None


def test_whatever_is_killed_at_random(
    expected: Losses, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEP_SECONDS", "0.5")  # so that it lasts for many rounds
    draw = random.Random(ROUNDS)
    driver = launch()
    for round_ in range(ROUNDS):
        wait_until(partial(_at_work, driver))
        time.sleep(draw.uniform(0.0, 2.0))
        if driver.poll() is not None:
            break
        what = draw.choice(["worker", "both workers", "driver", "all", "stop", "halt"])
        print(round_, what, statuses() if FOLDER.exists() else "")
        crew = workers(driver)
        if what in ("worker", "both workers", "all"):
            for pid in crew[: 1 if what == "worker" else 2]:
                kill(pid, signal.SIGKILL)
        if what == "halt":
            kill(crew[0], signal.SIGSTOP)
            time.sleep(1)
            kill(crew[0], signal.SIGCONT)
        if what in ("driver", "all", "stop"):
            kill(driver.pid, signal.SIGINT if what == "stop" else signal.SIGKILL)
            assert driver.wait() in (0, 130, -signal.SIGKILL), driver.err
            driver = launch()
    go()
    if driver.poll() is not None:
        driver = launch()  # it had ended already, and says so again
    assert_whole(expected, finish(driver))
