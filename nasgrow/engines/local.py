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

from nasgrow.engines.crew import FULL, MISTAKE, PAUSE, STOPPED, Deaths
from nasgrow.engines.standing import WARNING, WORKERS, log_of
from nasgrow.search.config import Resources, thread_count

COMMAND: Sequence[str] = (sys.executable, "-m", "nasgrow", "worker")
"""How a worker is started; the study's folder and its number follow."""


def gpu_count() -> int:
    """The number of GPUs; torch is asked only where NVIDIA's tools are installed."""
    if shutil.which("nvidia-smi") is None:
        return 0
    import torch

    return torch.cuda.device_count()


@dataclass
class Process:
    """A worker, as the launcher sees it."""

    index: int
    process: subprocess.Popen[bytes]
    log: Path

    def complaint(self) -> str:
        """The last line that it said of its end."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        if lines and self.process.returncode == FULL:
            return lines[-1].removeprefix(WARNING)
        lines = [line for line in lines if not line.startswith(WARNING)]
        if lines:
            return lines[-1].removeprefix("nasgrow: ")
        # Who fails says why; who is killed cannot, nor one whose log is on a full disk.
        unsaid = " and could not say why, as on a full disk" if self.process.returncode > 0 else ""
        return f"a worker ended with code {self.process.returncode}{unsaid}"


@dataclass
class LocalCrew:
    """The worker processes of one launch; ``options`` are given to each."""

    folder: Path
    size: int
    resources: Resources
    options: Sequence[str] = ()
    workers: list[Process] = field(default_factory=list)

    def start(self) -> None:
        """Start all workers; cores are divided among them."""
        (self.folder / WORKERS).mkdir(parents=True, exist_ok=True)
        self.workers = [self._start(index) for index in range(self.size)]

    def watch(self, ended: Callable[[], int], look: Callable[[], None], stop: Callable[[], bool]) -> bool:
        """Wait until all workers have nothing left to do, as every crew does."""
        asked, deaths = False, Deaths(ended)
        deaths.expect(self.size)
        try:
            while True:
                if stop() and not asked:
                    self.ask_to_stop()
                    asked = True
                if not asked:
                    self._replace_dead(deaths)
                codes = [worker.process.poll() for worker in self.workers]
                look()
                # Who died since then is replaced next time, even if nobody else is left.
                if all(code == 0 or (asked and code is not None) for code in codes):
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

    def _replace_dead(self, deaths: Deaths) -> None:
        for place, worker in enumerate(self.workers):
            code = worker.process.poll()
            if code is None or code == 0:
                continue
            if code > 0 and code not in (STOPPED, FULL):
                # Code 2 is a mistake of the user's, in one line; of anything else the log tells more.
                raise ValueError(worker.complaint() + ("" if code == MISTAKE else f"; see {worker.log}"))
            deaths.add(f"{worker.complaint()}; see {worker.log}")
            self.workers[place] = self._start(worker.index)

    def _start(self, index: int) -> Process:
        log = log_of(self.folder, index)
        threads = thread_count(self.resources, self.size)
        # Threads that spin while they wait slow down everything else on the machine.
        environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", **os.environ}
        if self.resources.gpus == 0:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        with log.open("ab") as file:  # what the one before it warned of may not have been told yet
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
        return Process(index, process, log)
