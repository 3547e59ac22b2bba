"""Records: what a run leaves on disk, and all that a report needs.

A run's folder holds ``description.json`` (everything that determines the run, and where it ran) and
``tokenizer.json``, written before training; ``metrics.jsonl``, a line for each record as it comes;
``result.json``, written at the end; and its checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nasgrow.training.files import to_json, write_text

DESCRIPTION = "description.json"
TOKENIZER = "tokenizer.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"
CHECKPOINTS = "checkpoints"


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON document atomically, for people to read too."""
    write_text(path, to_json(data, indent=2) + "\n")


def append_record(path: Path, known: int, *records: dict[str, Any]) -> int:
    """Append records to a metrics file of which ``known`` bytes are known; return its new length.

    Whatever stands after those bytes was written by a process that died later than its last checkpoint: it is
    going to be written again, and is cut off.
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


def last_beyond(path: Path, known: int) -> dict[str, Any] | None:
    """The last whole record of a metrics file beyond its ``known`` bytes, if there is one.

    A process that died later than its last checkpoint wrote it.
    """
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(known)
        *whole, _ = file.read().split(b"\n")
    for line in reversed(whole):
        try:
            record = json.loads(line)
        except ValueError:  # damaged, as what was written last before a crash can be
            continue
        if isinstance(record, dict):
            return record
    return None


def cut_records(path: Path, known: int) -> None:
    """Cut off what stands beyond the ``known`` bytes of a metrics file."""
    try:
        with path.open("r+b") as file:
            file.truncate(known)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> ValueError:
    return ValueError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}")


def read_metrics(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of a run, finished or not; a last line that was cut short is left out."""
    path = folder / METRICS
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes:
        status: ``finished`` or ``diverged``.
        validation: The final loss on the validation split, in nats per token; None if it diverged.
        steps: Steps trained.
        tokens: Tokens trained on.
        charged: FLOPs of the schedule, up to where the run ended.
        executed: FLOPs that were really spent on it: those charged, less those of steps whose outcome was
            found (trunks), and those of recorded steps that were done again because a process died after its
            last checkpoint.
        seconds: Wall time.
        parameters: Parameters of the final shape.
    """

    status: str
    validation: float | None
    steps: int
    tokens: int
    charged: int
    executed: int
    seconds: float
    parameters: int
