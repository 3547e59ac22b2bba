"""Records: the files of a run on disk, which hold all that a report needs.

A run's folder holds ``description.json`` (everything that determines the run, and where it ran) and
``tokenizer.json``, written before training; ``metrics.jsonl``, a line for each record as it comes;
``result.json``, written at the end; ``test.json``, written if the run is tested; and its
checkpoints.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from nasgrow.errors import UserError
from nasgrow.strict import read_as
from nasgrow.training.atomic_files import to_json, write_text
from nasgrow.training.run import Run

DESCRIPTION = "description.json"
TOKENIZER = "tokenizer.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"
CHECKPOINTS = "checkpoints"
TEST = "test.json"
"""The file in a run's folder that holds its loss on the test split, and a sample of its model's text."""


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write an indented JSON document atomically; a number that is not finite becomes null.

    Raises:
        UserError: The file cannot be written. An older file at ``path`` is unchanged.
    """
    write_text(path, to_json(data, indent=2) + "\n")


def append_record(path: Path, known: int, *records: dict[str, Any]) -> int:
    """Append records to the first ``known`` bytes of a metrics file; return its length in bytes.

    The file is created if it does not exist. Bytes after the known ones are cut off: a process that
    died after its last checkpoint wrote them, and the resumed run writes those records again. If
    the known bytes end with an incomplete line, it is cut off too.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        with path.open("r+b" if path.exists() else "x+b") as file:
            whole = file.read(known).rfind(b"\n") + 1  # less than is known, if the file was damaged
            file.truncate(whole)
            file.seek(whole)
            file.write(b"".join(to_json(record).encode() + b"\n" for record in records))
            return file.tell()
    except OSError as error:
        raise _unwritable(path, error) from None


_PLACE = {"step", "tokens", "charged", "executed", "fraction", "seconds"}
_VALUES = {
    "train": {"loss", "learning_rate", "gradient", "tokens_per_second", "peak_fraction"},
    "evaluation": {"aligned", "validation"},
    "event": {"loss_before", "loss_after", "change", "flops", "new_gradient"},
}


def is_record(record: object) -> bool:
    """Return whether a parsed JSON value is a valid record of kind train, evaluation or event.

    It must have exactly the fields of its kind; only ``operator`` is optional. A measured value
    may be null, which stands for a number that was not finite. Records of a cached prefix are
    checked with it, because another process may have written them. Final records are not valid: a
    prefix has none.
    """
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return False
    values = _VALUES.get(record["kind"])
    numbers = {name: value for name, value in record.items() if name not in ("kind", "operator")}
    if values is None or numbers.keys() != _PLACE | values:
        return False
    if not isinstance(record.get("operator", ""), str):
        return False
    return all((value is None and name in values) or _is_number(value) for name, value in numbers.items())


def last_beyond(path: Path, known: int) -> dict[str, Any] | None:
    """Return the last valid record of a metrics file after its first ``known`` bytes; None without one.

    A process that died after its last checkpoint wrote it.
    """
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(known)
        *lines, _ = file.read().split(b"\n")
    for record in map(read_record, reversed(lines)):
        if record is not None and all(_is_number(record.get(name)) for name in _PLACE):
            return record
    return None


def read_record(line: bytes) -> dict[str, Any] | None:
    """Parse a line of a metrics file; None if it is damaged, as the last line before a crash may be."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("kind"), str) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def whole_bytes(path: Path) -> int:
    """Return the length in bytes of a metrics file up to its first damaged or incomplete line."""
    length = 0
    if path.exists():
        *lines, _ = path.read_bytes().split(b"\n")
        for line in lines:
            if read_record(line) is None:
                break
            length += len(line) + 1
    return length


def sync_records(path: Path) -> None:
    """Flush a metrics file to disk, so that it survives a power cut."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def cut_records(path: Path, known: int) -> None:
    """Truncate a metrics file to its first ``known`` bytes.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        with path.open("r+b") as file:
            file.truncate(known)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}")


def read_metrics(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records in a run's folder, in order; none if it has no metrics file.

    The run may still be training. Damaged and incomplete lines are left out.
    """
    path = folder / METRICS
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            record = read_record(line) if line.endswith(b"\n") else None
            if record is not None:
                yield record


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, newest first."""
    names = [path.stem.removeprefix("step-") for path in folder.glob("step-*.json")]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


@dataclass(frozen=True)
class Result:
    """How a run ended, or its costs so far.

    Attributes:
        status: ``finished`` or ``diverged``. A run that has not ended is ``paused`` or
            ``interrupted``; such a result is never written to the folder.
        validation: The final loss on the validation split, in nats per token; None unless the run
            finished.
        steps: Steps of the schedule so far, with those of shared prefixes that were cached.
        tokens: Tokens of these steps.
        charged: FLOPs of these steps and of the events between them.
        executed: FLOPs that were really computed: the charged ones, minus those of shared prefixes that
            were cached, plus those of recorded steps that were repeated because a process died after its
            last checkpoint.
        seconds: Wall time, without the time between interruptions and resumptions.
        parameters: Parameters of the model when the run ended; 0 if it has not ended.
    """

    status: str
    validation: float | None
    steps: int
    tokens: int
    charged: int
    executed: int
    seconds: float
    parameters: int


@dataclass(frozen=True)
class Description:
    """The description in a run's folder: the run, and the machines that trained it.

    Attributes:
        run: The run, as :meth:`Run.describe` returns it.
        machine: The machine and software with which it began.
        resumed_on: The machines and software with which it was resumed, in order, each different
            from the one before.
    """

    run: dict[str, Any]
    machine: dict[str, Any]
    resumed_on: tuple[dict[str, Any], ...] = ()


_RESULT = TypeAdapter(Result)
_DESCRIPTION = TypeAdapter(Description)


def read_result(folder: Path) -> Result:
    """Read the result of a run that has ended.

    Raises:
        UserError: The file is missing or damaged.
    """
    return read_as(folder / RESULT, _RESULT)


def read_description(folder: Path) -> Description:
    """Read the description in a run's folder.

    Raises:
        UserError: The folder is not that of a run, or the description is damaged.
    """
    if not (folder / DESCRIPTION).exists():
        raise UserError(f"{folder}: is not a run's folder: it has no {DESCRIPTION}")
    return read_as(folder / DESCRIPTION, _DESCRIPTION)


def read_run(folder: Path) -> Run:
    """Return the run that a folder describes.

    Raises:
        UserError: As for :func:`read_description`.
    """
    return Run.from_description(read_description(folder).run, str(folder / DESCRIPTION))
