"""The local executor: train jobs in worker processes on this machine, connected by pipes."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from nasgrow.executors.base import (
    Died,
    Event,
    Executor,
    Failed,
    Finished,
    Job,
    TrialKey,
    event_from_json,
)
from nasgrow.executors.worker import Setup
from nasgrow.schedulers.base import Decision

COMMAND: Sequence[str] = (sys.executable, "-m", "nasgrow.executors.worker")

STORAGE = "NASGROW_STORAGE"
"""The prefix of the environment variables that workers do not inherit.

They may hold a database password, and no worker uses the storage.
"""

GRACE = 60.0
"""Seconds that :meth:`LocalExecutor.close` gives each worker to save before it kills the worker."""


@dataclass
class _Process:
    """A worker process, its log and the job that it trains.

    ``unread`` is the part of a line read so far. ``failed`` is True once the worker has reported an
    error.
    """

    index: int
    process: subprocess.Popen[bytes]
    log: Path
    job: TrialKey | None = None
    unread: bytes = b""
    failed: bool = False

    def send(self, message: dict[str, object]) -> None:
        """Send a message to the worker.

        If the worker has died, nothing is sent: :meth:`LocalExecutor.events` will see the end of its pipe.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()


def one_gpu(index: int, count: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variable that shows a worker one GPU, or hides all if ``count`` is 0.

    Workers take turns at the GPUs that this process sees. The GPU is then ``cuda:0`` in each
    worker. So no tensor can land on another GPU, and the compiler's cache, whose keys include the
    device's index, serves all GPUs. ROCm gives precedence to ``HIP_VISIBLE_DEVICES``.

    Args:
        index: The index of the worker.
        count: The number of GPUs.
        environment: The variables of this process, which may name the GPUs that it sees.
    """
    name = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environment else "CUDA_VISIBLE_DEVICES"
    given = environment.get(name)
    names = given.split(",") if given else [str(number) for number in range(count)]
    return {name: names[index % count].strip() if count else ""}


class LocalExecutor(Executor):
    """Trains jobs in processes on this machine.

    A slot's process starts when it is first needed, and a new one replaces a process that died.

    Args:
        setup: The settings of the workers. Each worker sees one of ``setup.gpus`` GPUs.
        slots: The most workers, and so the most jobs at once.
        logs: The folder of the workers' logs. An empty log is deleted when its worker ends.
    """

    def __init__(self, setup: Setup, slots: int, logs: Path) -> None:
        self._setup, self._slots, self._logs = setup, slots, logs
        self._workers: dict[int, _Process] = {}
        self._selector = selectors.DefaultSelector()
        self._stopping = False

    @property
    def slots(self) -> int:
        """How many jobs can be trained at once."""
        return self._slots

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.process.pid for worker in self._workers.values()]

    def submit(self, job: Job) -> None:
        """Send a job to an idle worker, or to a new one."""
        idle = (worker for worker in self._workers.values() if worker.job is None)
        worker = next(idle, None) or self._start(
            next(i for i in range(self._slots) if i not in self._workers)
        )
        worker.job = job.trial
        worker.send({"job": job.to_json()})

    def reply(self, trial: TrialKey, decision: Decision) -> None:
        """Send a decision to the worker that trains a trial."""
        for worker in self._workers.values():
            if worker.job == trial:
                worker.send({"reply": decision.value})

    def events(self, timeout: float) -> Sequence[Event]:
        """Return the events that workers wrote; wait up to ``timeout`` seconds if there are none.

        A worker that has ended without reporting an error gives a ``Died`` event for its job, or an
        interrupted ``Finished`` event if the executor was stopped.
        """
        found: deque[Event] = deque()
        for key, _ in self._selector.select(timeout):
            worker: _Process = key.data
            read = os.read(key.fd, 1 << 16)
            if not read:
                found += self._ended(worker)
                continue
            *lines, worker.unread = (worker.unread + read).split(b"\n")
            for line in lines:
                event = event_from_json(json.loads(line))
                found.append(event)
                worker.failed |= isinstance(event, Failed)
                if isinstance(event, Finished | Died):
                    worker.job = None
            if lines and isinstance(found[-1], Died):
                worker.process.kill()  # it is about to exit, and must get no other job before that
                worker.process.wait()
                self._forget(worker)
        return found

    def stop(self) -> None:
        """Ask all workers to save and end."""
        self._stopping = True
        for worker in self._workers.values():
            worker.send({"stop": True})

    def close(self) -> None:
        """End all workers. A worker that still trains saves first; after ``GRACE`` seconds it is killed."""
        self.stop()
        for worker in list(self._workers.values()):
            assert worker.process.stdin is not None
            with suppress(BrokenPipeError):
                worker.process.stdin.close()
            try:
                worker.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            self._forget(worker)
        self._selector.close()

    def _start(self, index: int) -> _Process:
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"worker-{index}.log"
        # Threads that spin while they wait would slow down everything else on the machine.
        environment = {
            "OMP_NUM_THREADS": str(self._setup.threads),
            "OMP_WAIT_POLICY": "passive",
            **{name: value for name, value in os.environ.items() if not name.startswith(STORAGE)},
        }
        environment |= one_gpu(index, self._setup.gpus, environment)
        with log.open("ab") as errors:
            process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,  # so that Ctrl-C reaches only the driver, which lets workers save
            )
        worker = _Process(index, process, log)
        self._workers[index] = worker
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        worker.send(asdict(self._setup))
        return worker

    def _ended(self, worker: _Process) -> Sequence[Event]:
        """Return the events of a process whose pipe has closed."""
        code = worker.process.wait()
        self._forget(worker)
        if worker.job is None or self._stopping:
            return [] if worker.job is None else [Finished(worker.job, "interrupted", (), ())]
        if worker.failed:
            return []
        reason = f"killed by signal {-code}" if code < 0 else f"ended with code {code}; see {worker.log}"
        return [Died(worker.job, reason)]

    def _forget(self, worker: _Process) -> None:
        assert worker.process.stdin is not None
        assert worker.process.stdout is not None
        with suppress(KeyError):
            self._selector.unregister(worker.process.stdout)
        for pipe in (worker.process.stdin, worker.process.stdout):
            with suppress(OSError):
                pipe.close()
        self._workers.pop(worker.index, None)
        if worker.log.exists() and worker.log.stat().st_size == 0:
            worker.log.unlink()
