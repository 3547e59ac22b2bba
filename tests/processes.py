"""Processes for tests to start and kill: forked from one that has imported torch already.

Importing it anew takes longer than what most of them train. The one that they are forked from has done
nothing but import, so each of them begins as a new process would.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

PRELOADED = ["pytest", "torch._dynamo", "nasgrow.cli.slope", "tests.training.test_trunks"]
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

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def wait(self) -> int:
        """Its exit code, which is waited for."""
        self._process.join(PATIENCE)
        assert self._process.exitcode is not None, "it does not end"
        return self._process.exitcode

    @property
    def out(self) -> str:
        """What it has written to standard output."""
        return (self._output / "out").read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        """What it has written to standard error."""
        return (self._output / "err").read_text(encoding="utf-8")


def _run(code: str, arguments: list[str], output: Path, place: Path, environment: dict[str, str]) -> None:
    os.chdir(place)
    os.environ.clear()
    os.environ.update(environment)
    for name, descriptor in (("out", 1), ("err", 2)):
        file = os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv = ["nasgrow", *arguments]
    exec(compile(code, "program", "exec"), {"__name__": "__main__"})
