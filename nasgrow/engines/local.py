"""The local engine: worker processes on this machine, started, watched, replaced when they die."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nasgrow.engines.standing import WORKERS
from nasgrow.search.config import core_count

COMMAND: Sequence[str] = (sys.executable, "-m", "nasgrow", "worker")
"""How a worker is started; the study's folder and its number follow."""

REPLACEMENTS = 3
"""How many workers that died may be replaced without a trial having ended in between."""

MISTAKE = 2
"""The exit code of a command that ends with one line for the user."""

STOPPED = 130
"""A worker's exit code when it was asked to stop, and saved."""

PAUSE = 1.0
"""Seconds between two looks at the workers."""


def gpu_count() -> int:
    """The number of GPUs; torch is asked only where NVIDIA's tools are installed."""
    if shutil.which("nvidia-smi") is None:
        return 0
    import torch

    return torch.cuda.device_count()


@dataclass
class Worker:
    """One process."""

    index: int
    process: subprocess.Popen[bytes]
    log: Path

    def complaint(self) -> str:
        """The last line that it said."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1].removeprefix("nasgrow: ") if lines else f"ended with code {self.process.returncode}"


@dataclass
class Crew:
    """The worker processes of one launch; ``options`` are given to each."""

    folder: Path
    size: int
    options: Sequence[str] = ()
    workers: list[Worker] = field(default_factory=list)
    replaced: int = 0

    def start(self) -> None:
        """Start all workers; cores are divided among them."""
        (self.folder / WORKERS).mkdir(parents=True, exist_ok=True)
        self.workers = [self._start(index) for index in range(self.size)]

    def watch(self, ended: Callable[[], int], look: Callable[[], None], stop: Callable[[], bool]) -> bool:
        """Wait until all workers have nothing left to do; False if they were asked to stop before.

        Args:
            ended: The number of trials that have ended: as long as it rises, the dead are replaced.
            look: Called about once a second.
            stop: Whether to ask the workers to save and stop.

        Raises:
            ValueError: A worker failed, or workers keep dying; the others have saved and stopped.
        """
        asked, before = False, ended()
        try:
            while True:
                if stop() and not asked:
                    self.ask_to_stop()
                    asked = True
                if not asked:
                    before = self._replace_dead(before, ended)
                look()
                if all(worker.process.poll() is not None for worker in self.workers):
                    return not asked
                time.sleep(PAUSE)
        finally:
            self.ask_to_stop()
            for worker in self.workers:
                worker.process.wait()
                if worker.process.returncode in (0, STOPPED):
                    worker.log.unlink(missing_ok=True)

    def ask_to_stop(self) -> None:
        """Let every worker save and stop."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)

    def _replace_dead(self, before: int, ended: Callable[[], int]) -> int:
        for place, worker in enumerate(self.workers):
            code = worker.process.poll()
            if code is None or code == 0:
                continue
            if code > 0 and code != STOPPED:
                # Code 2 is a mistake of the user's, in one line; of anything else the log tells more.
                raise ValueError(worker.complaint() + ("" if code == MISTAKE else f"; see {worker.log}"))
            now = ended()
            self.replaced = 0 if now > before else self.replaced + 1
            before = now
            if self.replaced > REPLACEMENTS:
                raise ValueError(f"workers keep dying: {worker.complaint()}; see {worker.log}")
            self.workers[place] = self._start(worker.index)
        return before

    def _start(self, index: int) -> Worker:
        log = self.folder / WORKERS / f"{index}-{os.getpid()}.log"
        threads = max(1, core_count() // self.size)
        # Threads that spin while they wait slow down everything else on the machine.
        environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", **os.environ}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [
                    *COMMAND,
                    str(self.folder),
                    "--index",
                    str(index),
                    "--parent",
                    str(os.getpid()),
                    *self.options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the launcher, which asks each worker once
            )
        return Worker(index, process, log)
