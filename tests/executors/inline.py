"""An executor that trains in threads of this process: no start-up, and everything can be patched."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nasgrow.executors.base import Died, Event, Executor, Finished, Job, TrialKey
from nasgrow.executors.worker import Setup, Worker, failure
from nasgrow.schedulers.base import Decision


class InlineExecutor(Executor):
    """Takes the place of :class:`~nasgrow.executors.local.LocalExecutor`."""

    def __init__(self, setup: Setup, slots: int, logs: Path) -> None:
        self._setup, self._slots = setup, slots
        self._events: queue.Queue[Event] = queue.Queue()
        self._stopped = threading.Event()
        self._replies: dict[TrialKey, queue.Queue[Decision | None]] = {}
        self._threads: list[threading.Thread] = []

    @property
    def slots(self) -> int:
        return self._slots

    def submit(self, job: Job) -> None:
        self._replies[job.trial] = queue.Queue()
        self._threads.append(threading.Thread(target=self._train, args=(job,), daemon=True))
        self._threads[-1].start()

    def _train(self, job: Job) -> None:
        try:
            worker = Worker(self._setup, self._events.put, self._stopped.is_set)
            self._events.put(worker.train(Job.from_json(job.to_json()), self._replies[job.trial].get))
        except Exception as error:
            self._events.put(failure(error))

    def reply(self, trial: TrialKey, decision: Decision) -> None:
        if trial in self._replies:  # it may have ended since
            self._replies[trial].put(decision)

    def events(self, timeout: float) -> Sequence[Event]:
        found: list[Event] = []
        with suppress(queue.Empty):
            found.append(self._events.get(timeout=timeout))
            while True:
                found.append(self._events.get_nowait())
        for event in found:
            if isinstance(event, Finished | Died):
                self._replies.pop(event.trial)
        return found

    def stop(self) -> None:
        self._stopped.set()
        for replies in list(self._replies.values()):
            replies.put(None)

    def close(self) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()
