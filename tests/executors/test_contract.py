"""What every executor that trains promises: local processes and Ray alike."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
import torch

from nasgrow.config import RunConfig
from nasgrow.data import prepare
from nasgrow.executors.base import (
    Died,
    Evaluated,
    Event,
    Executor,
    Failed,
    Finished,
    Job,
    Progressed,
    TrialKey,
)
from nasgrow.executors.local import LocalExecutor
from nasgrow.executors.worker import Setup
from nasgrow.schedulers.base import Decision
from nasgrow.strict import parse
from nasgrow.study.config import Resources
from nasgrow.training.runner import Runner
from tests.training.runs import TRAINING, text_files

PATIENCE = 120.0
HAS_RAY = importlib.util.find_spec("ray") is not None


class Make(Protocol):
    """Makes an executor with so many slots."""

    __name__: str

    def __call__(self, setup: Setup, slots: int) -> Executor: ...


def local(setup: Setup, slots: int) -> Executor:
    return LocalExecutor(setup, slots, Path(setup.runs).parent / "logs")


def on_ray(setup: Setup, slots: int) -> Executor:
    from nasgrow.executors.ray import RayExecutor

    return RayExecutor(setup, Resources(cpus=0.5), None, slots)


EXECUTORS: dict[str, Make] = {"local": local, "ray": on_ray}
"""A new executor gets a line here."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            name, marks=pytest.mark.skipif(name == "ray" and not HAS_RAY, reason="Ray is not installed")
        )
        for name in EXECUTORS
    ],
)
def make(request: pytest.FixtureRequest) -> Make:
    return EXECUTORS[request.param]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """Data for all executors."""
    folder = tmp_path_factory.mktemp("executor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NASGROW_CACHE", str(folder / "cache"))
        # Ray that is started here sets it, and no cluster of several nodes can be started with it.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        config = config_of(folder, seed=0)
        fingerprint = prepare(config.data).fingerprint
        yield Setup(str(folder / "runs"), config.data.model_dump(mode="json"), fingerprint, None, 0, 1)


@pytest.fixture(scope="module")
def setup(prepared: Setup, make: Make) -> Setup:
    """Each executor has runs of its own."""
    return replace(prepared, runs=f"{prepared.runs}-{make.__name__}")


@pytest.fixture(scope="class")
def executor(setup: Setup, make: Make) -> Iterator[Executor]:
    with make(setup, 2) as made:
        yield made


def config_of(folder: Path, seed: int, flops: float = 8e7) -> RunConfig:
    text = folder / "text"
    pattern = str(text / "*.txt") if text.exists() else text_files(text)
    data = {
        "schedule": {
            "start": {"hidden": 8, "layers": 1, "mlp": 16, "heads": 1, "key": 4, "value": 4},
            "events": [{"at": 0.4, "grow": [{"expand": "hidden", "to": 16}]}],
        },
        "budget": {"flops": flops},
        "data": {"text": {"source": "files", "paths": [pattern]}, "validation": 0.1, "test": 0.1},
        "training": {**TRAINING, "evaluations": 4},
        "seed": seed,
    }
    return parse(RunConfig, data, "test")


def job(
    setup: Setup, number: int, seeds: tuple[int, ...] = (0,), *, test: bool = False, flops: float = 8e7
) -> Job:
    folder = Path(setup.runs).parent
    runs = tuple(config_of(folder, seed, flops) for seed in seeds)
    return Job(TrialKey("search", number), runs, {}, test)


def played(
    executor: Executor,
    *jobs: Job,
    decide: Callable[[Evaluated], Decision] = lambda event: Decision.CONTINUE,
    act: Callable[[Event], None] = lambda event: None,
    expect: Sequence[Job] = (),
) -> list[Event]:
    """The events of some jobs, and of others that were submitted before, until each has ended."""
    for one in jobs:
        executor.submit(one)
    left = {one.trial for one in (*jobs, *expect)}
    found: list[Event] = []
    deadline = time.monotonic() + PATIENCE
    while left:
        assert time.monotonic() < deadline, found
        for event in executor.events(0.5):
            found.append(event)
            if isinstance(event, Evaluated):
                executor.reply(event.trial, decide(event))
            if isinstance(event, Finished | Died):
                left.discard(event.trial)
            if isinstance(event, Failed):
                return found
            act(event)
    return found


def ended(events: list[Event]) -> Finished:
    event = events[-1]
    assert isinstance(event, Finished), events
    return event


def undisturbed(setup: Setup, folder: Path, seed: int = 0, flops: float = 8e7) -> float:
    """The loss of a run that this process trains."""
    threads = torch.get_num_threads()
    torch.set_num_threads(setup.threads)
    config = config_of(Path(setup.runs).parent, seed, flops)
    quiet = (lambda progress: None), (lambda message: None), (lambda: False)
    runner = Runner(folder, prepare(config.data), torch.device("cpu"), *quiet)
    result = runner.train(runner.resolve(config)[0], lambda at, loss: None)
    torch.set_num_threads(threads)
    assert result.validation is not None
    return result.validation


class TestContract:
    def test_stopping_saves_and_the_next_executor_goes_on_to_the_same_loss(
        self, make: Make, setup: Setup, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        long = job(setup, 0, (20,), flops=2e8)
        with make(setup, 1) as first:

            def act(event: Event) -> None:
                if isinstance(event, Evaluated) and event.at == 0.25:
                    first.stop()

            assert ended(played(first, long, act=act)).status == "interrupted"
        second: Executor = request.getfixturevalue("executor")  # once the first has ended
        last = ended(played(second, long))
        assert last.runs[0].executed == last.runs[0].charged, "it went on from there"
        assert last.runs[0].loss == undisturbed(setup, tmp_path, 20, 2e8)

    def test_a_job_trains_every_seed_and_streams_the_first(
        self, executor: Executor, setup: Setup, tmp_path: Path
    ) -> None:
        events = played(executor, job(setup, 0, (0, 1), test=True))
        last = ended(events)
        assert last.status == "finished"
        assert [run.seed for run in last.runs] == [0, 1]
        assert last.runs[0].loss == undisturbed(setup, tmp_path)
        assert all(run.test is not None and run.charged == run.executed > 0 for run in last.runs)
        streamed = [(event.at, event.loss) for event in events if isinstance(event, Evaluated)]
        assert [at for at, _ in streamed] == [0.0, 0.25, 0.5, 0.75]
        assert last.evaluations == tuple(streamed)
        assert any(isinstance(event, Progressed) and event.fraction == 0.0 for event in events)

    def test_a_job_that_ended_before_ends_at_once_with_its_curve(
        self, executor: Executor, setup: Setup
    ) -> None:
        first = ended(played(executor, job(setup, 1, (10,))))
        events = played(executor, job(setup, 2, (10,)))
        assert not [event for event in events if isinstance(event, Evaluated)]
        again = ended(events)
        assert (again.runs, again.evaluations) == (first.runs, first.evaluations)

    def test_a_job_pauses_where_the_driver_says_so_and_goes_on_to_the_same_loss(
        self, executor: Executor, setup: Setup, tmp_path: Path
    ) -> None:
        paused = ended(
            played(
                executor,
                job(setup, 3, (11,)),
                decide=lambda event: Decision.PAUSE if event.at == 0.5 else Decision.CONTINUE,
            )
        )
        assert (paused.status, paused.runs[0].loss) == ("paused", None)
        assert 0 < paused.runs[0].executed < ended(played(executor, job(setup, 3, (11,)))).runs[0].charged
        again = ended(played(executor, job(setup, 3, (11,))))
        assert again.status == "finished"
        assert again.runs[0].loss == undisturbed(setup, tmp_path, 11)
        assert again.runs[0].executed == again.runs[0].charged

    def test_two_jobs_are_trained_at_once(self, executor: Executor, setup: Setup) -> None:
        assert executor.slots == 2
        both = [job(setup, 4, (12,)), job(setup, 5, (13,))]
        for one in both:
            executor.submit(one)
        waiting: set[TrialKey] = set()
        while len(waiting) < 2:  # none is replied to before both wait
            waiting |= {event.trial for event in executor.events(0.5) if isinstance(event, Evaluated)}
        for trial in waiting:
            executor.reply(trial, Decision.CONTINUE)
        events = played(executor, expect=both)
        assert {event.trial for event in events if isinstance(event, Finished)} == waiting

    def test_a_mistake_of_the_users_is_reported_without_a_traceback(
        self, executor: Executor, setup: Setup
    ) -> None:
        (failed,) = [
            event for event in played(executor, job(setup, 6, flops=1.0)) if isinstance(event, Failed)
        ]
        assert failed.traceback is None
        assert "leaves no step" in failed.message


def test_a_local_worker_that_is_killed_is_an_event_and_the_job_goes_on_to_the_same_loss(
    prepared: Setup, tmp_path: Path
) -> None:
    with local(prepared, 1) as executor:
        assert isinstance(executor, LocalExecutor)
        long = job(prepared, 0, (30,), flops=2e8)

        def kill(event: Event) -> None:
            if isinstance(event, Evaluated) and event.at == 0.5:
                (pid,) = executor.pids
                os.kill(pid, signal.SIGKILL)

        events = played(executor, long, act=kill)
        assert events[-1] == Died(long.trial, "killed by signal 9")
        assert ended(played(executor, long)).runs[0].loss == undisturbed(prepared, tmp_path, 30, 2e8)
