"""An executor that trains every job to its end at once, in this process and this thread."""

from __future__ import annotations

from collections.abc import Sequence

from nasgrow.executors.base import Event, Executor, Job, TrialKey
from nasgrow.executors.worker import Setup, Worker
from nasgrow.schedulers.base import Decision


class InProcess(Executor):
    """Trains with one worker; nothing is paused, and a stop waits for the job."""

    def __init__(self, setup: Setup) -> None:
        self._worker = Worker(setup, lambda event: None, lambda: False)
        self._jobs: list[Job] = []

    @property
    def slots(self) -> int:
        return 1

    def submit(self, job: Job) -> None:
        self._jobs.append(job)

    def reply(self, trial: TrialKey, decision: Decision) -> None:
        raise AssertionError("the driver was asked for no decision")

    def events(self, timeout: float) -> Sequence[Event]:
        jobs, self._jobs = self._jobs, []
        return [self._worker.train(job, lambda: Decision.CONTINUE) for job in jobs]

    def stop(self) -> None: ...

    def close(self) -> None: ...
