"""Open the folder of a run. A folder belongs to one run, and one process at a time trains in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from filelock import BaseFileLock, FileLock, Timeout

from nasgrow.data import Tokenizer
from nasgrow.errors import UserError
from nasgrow.strict import read_json
from nasgrow.training.atomic_files import sweep, write_atomically
from nasgrow.training.machine import describe_machine
from nasgrow.training.records import DESCRIPTION, RESULT, TOKENIZER, Result, read_result, read_run, write_json
from nasgrow.training.run import Run

FOLDER_POLL_SECONDS = 0.2
"""The time between two attempts to lock a folder that another process has locked."""


@contextmanager
def open_folder(
    folder: Path,
    run: Run,
    tokenizer: Tokenizer,
    device: torch.device,
    *,
    wait: Callable[[], bool] | None = None,
    notes: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Result | None]:
    """Lock the run's folder, and yield the run's result if the run has ended before, else None.

    A new folder first gets the tokenizer and the complete description. If the run resumes on
    another machine or with other software, the description records that. Temporary files of killed
    processes are removed.

    Args:
        folder: The folder; created if it does not exist.
        run: The run.
        tokenizer: The tokenizer of the data.
        device: The device that the run will train on.
        wait: Called repeatedly while another process trains the run; returns whether to go on waiting.
            By default this function does not wait.
        notes: Further entries about the machine for the description.

    Raises:
        UserError: The folder describes another run, cannot be used, or another process still trains
            in it after the waiting.
    """
    lock = _acquire(folder, wait or (lambda: False))
    try:
        sweep(folder)
        ended = (folder / RESULT).exists()
        if (folder / DESCRIPTION).exists():
            described = read_run(folder).identity
            if described != run.identity:
                raise UserError(f"{folder}: holds run {described}, not {run.identity}; choose another folder")
            if not ended:
                _note_machine(folder / DESCRIPTION, {**describe_machine(device), **notes})
        else:
            write_atomically(folder / TOKENIZER, tokenizer.save)
            machine = {**describe_machine(device), **notes}
            write_json(
                folder / DESCRIPTION, {"identity": run.identity, "run": run.describe(), "machine": machine}
            )
        yield read_result(folder) if ended else None
    finally:
        lock.release()


def _acquire(folder: Path, wait: Callable[[], bool]) -> BaseFileLock:
    """Create a folder if it does not exist, and lock it.

    If another process has locked it, try again as long as ``wait`` returns True.

    Raises:
        UserError: ``wait`` returned False, or the folder cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        while True:
            try:
                lock.acquire(timeout=0)
                return lock
            except Timeout:
                if not wait():
                    raise UserError(f"{folder}: another process is training this run") from None
            time.sleep(FOLDER_POLL_SECONDS)
    except OSError as error:
        raise UserError(f"{folder}: cannot be used: {(error.strerror or str(error)).lower()}") from None


def _note_machine(path: Path, machine: dict[str, Any]) -> None:
    """Add the machine to those that a description lists, unless it is the last of them."""
    described = read_json(path)
    later = described.get("resumed_on", [])
    if machine != [described.get("machine"), *later][-1]:
        write_json(path, {**described, "resumed_on": [*later, machine]})
