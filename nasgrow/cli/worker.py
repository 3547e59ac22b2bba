"""``nasgrow worker``: one process that trains the trials of a study; or a task that trains one."""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import torch

from nasgrow.cli.main import in_one_line
from nasgrow.cli.signals import asked_to_stop
from nasgrow.data import prepare
from nasgrow.engines.crew import FULL, STOPPED
from nasgrow.engines.local import gpu_count
from nasgrow.engines.standing import WARNING, Board
from nasgrow.engines.worker import OutOfMemory, Worker, device_of, work
from nasgrow.report.curve import draw_curve
from nasgrow.search.artifacts import attacher
from nasgrow.search.config import STUDY, thread_count, worker_count
from nasgrow.search.database import PATIENCE
from nasgrow.search.ledger import KINDS, Kind, Ledger
from nasgrow.search.life import begin, reopen
from nasgrow.search.study import Study, open_study, recorded_study
from nasgrow.strict import redact, with_prefix
from nasgrow.training.machine import pick_device


def run(path: Path, index: int, parent: int | None, confirm: bool) -> int:
    """Train trials until the study has ended, or the launcher has; return the exit code."""
    study, folder = recorded_study(path)
    if study.config.trunks is not None:
        with_prefix(str(path), study.config.trunks.check)
    if "OMP_NUM_THREADS" not in os.environ:  # as a launcher sets it: trunks are of one number of threads
        workers = worker_count(study.config, None, gpu_count())
        torch.set_num_threads(thread_count(study.config.resources, workers))
    ledger = _join(study, folder)
    with _warnings_in_lines(), asked_to_stop() as asked:
        try:
            whole = work(
                ledger,
                folder,
                index=index,
                device=device_of(study.config.resources, index),
                attach=attacher(folder, draw_curve),
                warn=_warn,
                kinds=_kinds(confirm),
                stop=lambda: asked() or (parent is not None and os.getppid() != parent),
            )
        except OutOfMemory as error:
            _warn(str(error))
            return FULL
    return 0 if whole else STOPPED


def task(order: Mapping[str, Any]) -> dict[str, Any]:
    """Train at most one trial in a process that an engine provides.

    Args:
        order: ``home``, the folder that paths are meant from, and ``folder``, the study's; ``index``, the
            worker's number; ``confirm``, whether to train confirmations; ``gpu``, whether one is its to
            train on; ``threads``; ``log``, the file for what it says; and ``environment``, variables to set.

    Returns:
        What it ``did``: trained, nothing, stopped, died or failed, and of these two the ``line`` that says
        why.
    """
    os.environ |= order["environment"]
    torch.set_num_threads(order["threads"])
    folder = Path(order["folder"])
    try:
        if not (folder / STUDY).is_file():
            raise ValueError(
                f"{socket.gethostname()}: sees no study in {folder}: all machines of a cluster must share "
                "the folder that the command runs in"
            )
        os.chdir(order["home"])
        with (
            Path(order["log"]).open("a", encoding="utf-8") as log,
            redirect_stderr(log),
            _warnings_in_lines(),
        ):
            worker = _worker(folder, (folder / STUDY).read_text(encoding="utf-8"), order["gpu"])
            try:
                with asked_to_stop() as stop:
                    did = worker.once(
                        _kinds(order["confirm"]),
                        board=Board(folder, order["index"]),
                        attach=attacher(folder, draw_curve),
                        warn=_warn,
                        stop=stop,
                    )
            except OutOfMemory as error:
                _warn(str(error))
                return {"did": "died", "line": str(error)}
    except Exception as error:
        line = in_one_line(error)
        if line is None:
            raise
        return {"did": "failed", "line": line}
    return {"did": did}


@lru_cache(maxsize=1)
def _worker(folder: Path, text: str, gpu: bool) -> Worker:
    """The worker that this process is for the study with this ``text``, shared by the tasks that it runs.

    Ray shows a task the GPU that is its, but all that there are to one that has none.
    """
    study, _ = open_study(folder)
    device = pick_device() if gpu else torch.device("cpu")
    return Worker(reopen(study, folder, PATIENCE), folder, device)


def _join(study: Study, folder: Path) -> Ledger:
    """The ledger of a study, begun if nobody has yet."""
    if (folder / STUDY).is_file():
        return reopen(study, folder, PATIENCE)
    return begin(study, folder, prepare(study.config.data).fingerprint)


def _kinds(confirm: bool) -> tuple[Kind, ...]:
    return ("confirmation",) if confirm else KINDS


def _warn(line: str) -> None:
    print(f"{WARNING}{redact(line)}", file=sys.stderr, flush=True)


@contextmanager
def _warnings_in_lines() -> Iterator[None]:
    """Let Python's warnings be told in a line each, as all others are."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        _warn(f"{category.__name__}: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
