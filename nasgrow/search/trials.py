"""Records of trials: a file for each one that ended, so that a report needs no database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from nasgrow.training.files import to_json, write_text

TRIALS = "trials"
"""The folder of these records in a study's folder."""


@dataclass(frozen=True)
class TrialRecord:
    """A trial that ended.

    Attributes:
        kind: ``search``, ``baseline`` or ``confirmation``.
        number: Optuna's number within its kind.
        status: ``finished``, ``pruned`` or ``diverged``.
        name: What it is known by: a known schedule's name, a baseline's size, a confirmation's candidate.
        parameters: What was sampled.
        schedule: Start shape and events, as in a schedule file.
        words: The same for people.
        learning_rate: The peak.
        seeds: The seeds trained, in order.
        losses: The final validation loss for each; None where training did not get there.
        test: The loss on the test split for each, for confirmations.
        runs: The identity of the run of each seed.
        charged: FLOPs billed.
        executed: FLOPs spent by machines: less where trunks were reused, or where another trial of the same
            run accounts for them.
        seconds: Wall time of training them.
        tokens: Tokens trained on.
        parameter_count: Parameters of the final shape.
        inference_flops: FLOPs of a forward pass of it for each token.
        replaces: Numbers of the same trial whose workers died, perhaps after recording it.
        ended: When it ended, in seconds since 1970.
        takes_up: Numbers of the same trial when it was given up early, and recorded as that.
    """

    kind: str
    number: int
    status: str
    name: str | None
    parameters: dict[str, Any]
    schedule: dict[str, Any]
    words: str
    learning_rate: float
    seeds: list[int]
    losses: list[float | None]
    test: list[float]
    runs: list[str]
    charged: int
    executed: int
    seconds: float
    tokens: int
    parameter_count: int
    inference_flops: int
    replaces: list[int]
    ended: float | None = None
    takes_up: list[int] = field(default_factory=list)


def write_trial(folder: Path, record: TrialRecord) -> None:
    """Write the record of a trial of the study in ``folder``; the same again writes the same file."""
    (folder / TRIALS).mkdir(exist_ok=True)
    path = folder / TRIALS / f"{record.kind}-{record.number:05d}.json"
    write_text(path, to_json(asdict(record), indent=2) + "\n")


_RECORD = TypeAdapter(TrialRecord)


def _refuse(path: Path) -> None:
    raise ValueError(f"{path}: is damaged")


def read_trials(folder: Path, damaged: Callable[[Path], None] = _refuse) -> list[TrialRecord]:
    """The trials of the study in ``folder`` that ended, by kind and number, none twice.

    Args:
        folder: The study's folder.
        damaged: Is told of each record that cannot be read, which is then left out; by default it raises
            ``ValueError``.
    """
    found = []
    for path in sorted((folder / TRIALS).glob("*.json")):
        try:
            found.append(_RECORD.validate_json(path.read_bytes()))
        except (OSError, ValueError):
            damaged(path)
    replaced = {(record.kind, number) for record in found for number in (*record.replaces, *record.takes_up)}
    return [record for record in found if (record.kind, record.number) not in replaced]
