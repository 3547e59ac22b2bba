"""The worker: train jobs and report events.

The local executor starts workers as processes (``python -m nasgrow.executors.worker``), and exchanges JSON
lines with them over standard input and output. A Ray actor uses the class :class:`Worker` itself. A worker
knows nothing about studies, schedulers or Optuna. When its input closes, the driver has died: the worker
saves its run and ends.
"""

from __future__ import annotations

import json
import math
import os
import queue
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from nasgrow.config import DataConfig
from nasgrow.data import prepare
from nasgrow.errors import UserError
from nasgrow.executors.base import (
    Died,
    Evaluated,
    Event,
    Failed,
    Finished,
    Job,
    Progressed,
    RunOutcome,
    Warned,
    event_to_json,
)
from nasgrow.redact import redact
from nasgrow.schedulers.base import Decision
from nasgrow.strict import parse
from nasgrow.trackers import Live, tracking
from nasgrow.training.device import pick_device
from nasgrow.training.loop import InterruptedRunError, Progress, StopTrainingError
from nasgrow.training.prefixes import open_prefix_cache
from nasgrow.training.records import Result
from nasgrow.training.run import Run
from nasgrow.training.runner import Runner, evaluations, so_far

PROGRESS_SECONDS = 0.5
"""The least time between two progress events."""

OUT_OF_MEMORY = "out of memory", "ALLOC_FAILED", "can't allocate memory"
"""Parts of the messages with which torch, GPU libraries and the CPU's allocator report a lack of memory."""


@dataclass(frozen=True)
class Setup:
    """The settings that all jobs of a worker share.

    Attributes:
        runs: The folder of the study's runs.
        data: The study's data section.
        fingerprint: The fingerprint of the data that the study began with.
        prefixes: The arguments of :func:`nasgrow.training.prefixes.open_prefix_cache`: the cache's folder,
            its size in gigabytes, the share of time that writing may take, and the fractions of the budget
            at which states are kept. None without a cache.
        gpus: The number of GPUs that the workers of a machine share; 0 to train on the CPU.
        threads: The number of torch's threads.
        trackers: The experiment trackers that show a run's records while it trains.
    """

    runs: str
    data: dict[str, Any]
    fingerprint: str
    prefixes: dict[str, Any] | None
    gpus: int
    threads: int
    trackers: Sequence[str] = ()


class Worker:
    """Trains jobs one after the other, and prepares data and device only once.

    Args:
        setup: The settings that its jobs share.
        report: Called with each event.
        stop: Called during training; returns True if the worker is to save and stop.

    Raises:
        UserError: The data cannot be prepared, or is not what the study began with.
    """

    def __init__(self, setup: Setup, report: Callable[[Event], None], stop: Callable[[], bool]) -> None:
        torch.set_num_threads(setup.threads)
        device = pick_device() if setup.gpus else torch.device("cpu")
        prefixes = None if setup.prefixes is None else open_prefix_cache(**setup.prefixes)
        corpus = prepare(parse(DataConfig, setup.data))
        if corpus.fingerprint != setup.fingerprint:
            raise UserError(
                f"data: on {socket.gethostname()} it is not what the study began with (fingerprint "
                f"{corpus.fingerprint}, not {setup.fingerprint}): its text must be the same on every machine"
            )
        self._report, self._stop = report, stop
        self._runner = Runner(
            Path(setup.runs),
            corpus,
            device,
            self._progressed,
            lambda message: report(Warned(message)),
            stop,
            prefixes,
        )
        self._trackers = setup.trackers
        self._live: Live | None = None
        self._job: Job | None = None
        self._ended_runs = 0
        self._shown = -math.inf

    def train(self, job: Job, decide: Callable[[], Decision | None]) -> Event:
        """Train a job until it finishes, pauses or stops, and return its last event.

        That is a ``Finished`` event, or a ``Died`` event if memory ran out; unlike all earlier
        events, it is not reported. Other errors are raised.

        Args:
            job: The job.
            decide: Called after each evaluation event of the first run: waits for the driver's
                decision and returns it; None if the worker is to stop.
        """
        self._job, self._ended_runs, self._shown = job, 0, -math.inf
        outcomes: list[RunOutcome] = []
        try:
            for index, config in enumerate(job.runs):
                run, folder = self._runner.resolve(config)
                decides = (lambda at, loss: self._evaluated(at, loss, decide)) if index == 0 else _ignore
                try:
                    with self._tracking(folder):
                        result = self._runner.train(run, decides)
                except InterruptedRunError:
                    result = so_far(folder, "interrupted")
                test = self._runner.test_loss(run) if job.test and result.status == "finished" else None
                outcomes.append(_outcome(run, result, test))
                if result.status != "finished" or (job.test and test is None):
                    break
                self._ended_runs += 1
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY):
                return Died(job.trial, _without_memory(error))
            raise
        curve = evaluations(self._runner.folder / outcomes[0].identity)
        return Finished(job.trial, self._status(job, result, test), tuple(outcomes), tuple(curve))

    def _status(self, job: Job, result: Result, test: float | None) -> Any:
        """Return the status of a job, given the result of its last run."""
        if result.status == "paused" and self._stop():
            return "interrupted"  # the pause was not the driver's decision
        if result.status == "finished" and job.test and test is None:
            return "diverged"
        return result.status

    def _evaluated(self, at: float, loss: float, decide: Callable[[], Decision | None]) -> None:
        assert self._job is not None
        self._report(Evaluated(self._job.trial, at, loss))
        if decide() != Decision.CONTINUE:
            raise StopTrainingError

    @contextmanager
    def _tracking(self, folder: Path) -> Iterator[None]:
        """Pass the records of a run to the experiment trackers, if any, while the body trains it."""
        self._live = tracking(self._trackers, folder)
        try:
            yield
        finally:
            if self._live is not None:
                self._live.close()

    def _progressed(self, progress: Progress) -> None:
        assert self._job is not None
        if time.monotonic() - self._shown > PROGRESS_SECONDS:
            self._shown = time.monotonic()
            if self._live is not None:
                self._live.update()
            fraction = (self._ended_runs + progress.fraction) / len(self._job.runs)
            where = progress.stage + 1, progress.stages, fraction, progress.loss
            self._report(Progressed(self._job.trial, *where))


def _ignore(at: float, loss: float) -> None:
    """Ignore an evaluation: the scheduler only sees those of a trial's first run."""


def _outcome(run: Run, result: Result, test: float | None) -> RunOutcome:
    return RunOutcome(
        identity=run.identity,
        seed=run.config.seed,
        loss=result.validation,
        test=test,
        charged=result.charged,
        executed=result.executed,
        seconds=result.seconds,
        tokens=result.tokens,
    )


def _without_memory(error: Exception) -> str:
    """Return the message about an out-of-memory error, with advice."""
    words = ". ".join(str(error).split("\n")[0].split(". ")[:2]).rstrip(".")
    return (
        f"out of memory ({words}): smaller training.micro_tokens, or fewer trials on a GPU by larger "
        "resources.gpus, may fit"
    )


def failure(error: Exception) -> Failed:
    """Return the event for an exception, with its message in one line.

    The event has a traceback too, unless the error is the user's or the operating system's.
    """
    line = redact(" ".join(str(error).splitlines()))
    if isinstance(error, UserError | OSError):
        return Failed(line, None)
    return Failed(f"{type(error).__name__}: {line}", redact("".join(traceback.format_exception(error))))


class _Input:
    """Reads the driver's messages in a thread: jobs, replies, and the request to stop."""

    def __init__(self, lines: TextIO) -> None:
        self.stopped = threading.Event()
        self.jobs: queue.Queue[Job | None] = queue.Queue()
        self._replies: queue.Queue[Decision | None] = queue.Queue()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: TextIO) -> None:
        try:
            for line in lines:
                if not line.endswith("\n"):
                    break  # the driver died while it wrote this line
                message = json.loads(line)
                if "job" in message:
                    self.jobs.put(Job.from_json(message["job"]))
                elif "reply" in message:
                    self._replies.put(Decision(message["reply"]))
                else:
                    break
        finally:  # the driver asks to stop, or has died, which closes the pipe
            self.stopped.set()
            self.jobs.put(None)
            self._replies.put(None)

    def reply(self) -> Decision | None:
        """Wait for the driver's reply to the last evaluation; return None if the worker is to stop."""
        return self._replies.get()


def main() -> None:
    """Run a worker process: train the jobs on standard input, write events to standard output.

    The first input line is the :class:`Setup`; further lines are jobs, replies or a request to
    stop. If the input closes, the driver has died; the worker then saves its run and ends, as it
    does on a request to stop. It also ends after a ``Died`` event, so that a new process starts
    with all of its memory free. On an error it reports a ``Failed`` event and exits with code 1.
    """
    # Only events go to the pipe. The output of libraries goes to standard error, which is the log.
    events = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    lock = threading.Lock()

    def report(event: Event) -> None:
        # If the driver has died, the input is closed too: that makes the worker save and end.
        with lock, suppress(BrokenPipeError):
            events.write(json.dumps(event_to_json(event)).encode() + b"\n")

    def show_warning(message: Warning | str, *_: object, **__: object) -> None:
        report(Warned(" ".join(str(message).splitlines())))

    warnings.showwarning = show_warning
    setup = Setup(**json.loads(sys.stdin.readline()))
    incoming = _Input(sys.stdin)
    try:
        worker = Worker(setup, report, incoming.stopped.is_set)
        while (job := incoming.jobs.get()) is not None:
            ended = worker.train(job, incoming.reply)
            report(ended)
            if isinstance(ended, Died):
                break  # a new process starts with all of its memory free
    except Exception as error:
        report(failure(error))
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
