"""Processes for tests to start and kill: forked from one that has imported torch already.

Importing it anew takes longer than what most of them train. The one that they are forked from has done
nothing but import, so each of them begins as a new process would.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

PRELOADED = [
    "pytest",
    "torch._dynamo",
    "nasgrow.cli.confirm",
    "nasgrow.cli.dashboard",
    "nasgrow.cli.search",
    "nasgrow.cli.slope",
    "nasgrow.cli.transfer",
    "nasgrow.executors.worker",
    "tests.training.prefixes",
]
COMMAND = """
from nasgrow.cli.main import main
from nasgrow.executors import local
from tests.processes import WORKER, forking
local.subprocess = forking(WORKER, 3)
main()
"""
WORKER = """
from nasgrow.executors.worker import main
main()
"""
ROOT = Path(__file__).parents[1]
PATIENCE = 120


@cache
def forks() -> ForkServerContext:
    """What starts processes that have imported all that is slow to import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("OMP_NUM_THREADS", "1")
        forkserver.ensure_running()
    return context


class Program:
    """A Python program that runs where this process stands, with one thread.

    Args:
        code: The program.
        arguments: What it finds in ``sys.argv`` after its name.
        folder: Where its output is kept.
        environment: Variables to set beside those of this process.
    """

    def __init__(
        self, code: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._output = folder / f"output-{len(list(folder.glob('output-*')))}"
        self._output.mkdir()
        for name in ("out", "err"):
            (self._output / name).touch()
        given = code, [*arguments], self._output, Path.cwd(), {**os.environ, **(environment or {})}
        self._process = forks().Process(target=_run, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.exitcode

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Its exit code, which is waited for."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, "it does not end"
        return self._process.exitcode

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """What it has written to standard output and standard error until its end, which is waited for."""
        self.wait(timeout)
        return self.out, self.err

    @property
    def out(self) -> str:
        """What it has written to standard output."""
        return (self._output / "out").read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        """What it has written to standard error."""
        return (self._output / "err").read_text(encoding="utf-8")


def forking(code: str = WORKER, most: int = 8) -> SimpleNamespace:
    """What stands in for the module ``subprocess`` in the local executor, so that workers are forked as well.

    All are forked at once, before the driver opens anything that they must not share, and wait for their
    orders. They are its children, and talk to it over pipes as those of ``subprocess`` do.

    Args:
        code: The program that a worker runs.
        most: How many the driver may start.
    """
    waiting: list[_Waiting] = []
    for _ in range(most):
        waiting.append(_fork(code, waiting))

    class Worker:
        def __init__(
            self,
            command: Sequence[str],
            *,
            stdin: int,
            stdout: int,
            stderr: IO[bytes],
            env: Mapping[str, str],
            start_new_session: bool,
        ) -> None:
            assert (stdin, stdout, start_new_session) == (subprocess.PIPE, subprocess.PIPE, True)
            given = waiting.pop(0)
            self.pid, self.stdin, self.stdout = given.pid, given.stdin, given.stdout
            self.returncode: int | None = None
            with given.order as file:
                file.write(json.dumps([os.path.realpath(stderr.name), {**env}]).encode())

        def poll(self) -> int | None:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

        def kill(self) -> None:
            os.kill(self.pid, signal.SIGKILL)

        def wait(self, timeout: float = PATIENCE) -> int:
            deadline = time.monotonic() + timeout
            while (code := self.poll()) is None:
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired("worker", timeout)
                time.sleep(0.01)
            return code

    return SimpleNamespace(Popen=Worker, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)


def nasgrow(folder: Path, *arguments: str) -> Program:
    """The command with these arguments, whose workers are forked too; ``folder`` keeps what it says."""
    return Program(COMMAND, arguments, folder)


@dataclass(frozen=True)
class _Waiting:
    """A forked worker that waits for its order, and the driver's ends of its three pipes."""

    pid: int
    order: IO[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]


def _fork(code: str, others: Sequence[_Waiting]) -> _Waiting:
    """Fork a worker."""
    order, stdin, stdout = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid:
        for end in (order[0], stdin[0], stdout[1]):
            os.close(end)
        return _Waiting(pid, open(order[1], "wb"), open(stdin[1], "wb"), open(stdout[0], "rb", buffering=0))
    # So that the death of the driver is the end of what it sends, to this one and to the others.
    for end in (order[1], stdin[1], stdout[0]):
        os.close(end)
    for other in others:
        for pipe in (other.order, other.stdin, other.stdout):
            os.close(pipe.fileno())
    status: object = 1
    try:
        with open(order[0], encoding="utf-8") as file:
            said = file.read()
        if said:
            os.setsid()
            log, environment = json.loads(said)
            os.dup2(stdin[0], 0)
            sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
            os.dup2(stdout[1], 1)
            for end in (stdin[0], stdout[1]):
                os.close(end)
            _begin(code, [], (None, Path(log)), Path.cwd(), environment)
        status = 0
    except SystemExit as end_of_it:
        status = end_of_it.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else int(status is not None))


def _run(code: str, arguments: list[str], output: Path, place: Path, environment: dict[str, str]) -> None:
    _begin(code, arguments, (output / "out", output / "err"), place, environment)


def _begin(
    code: str,
    arguments: list[str],
    output: tuple[Path | None, Path],
    place: Path,
    environment: dict[str, str],
) -> None:
    os.chdir(place)
    os.environ.clear()
    os.environ.update(environment)
    for path, descriptor in zip(output, (1, 2), strict=True):
        if path is None:
            continue
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv = ["nasgrow", *arguments]
    exec(compile(code, "program", "exec"), {"__name__": "__main__"})
