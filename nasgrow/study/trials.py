"""Trial records: one JSON file per trial, from which schedulers are rebuilt and reports are made.

The driver writes a trial's record when the trial starts, is paused, is resumed and ends. Optuna's storage
shows the same trials to the dashboard; the records are what nasgrow itself reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, get_args

from pydantic import StringConstraints, TypeAdapter

from nasgrow.errors import UserError
from nasgrow.names import short_name
from nasgrow.schedule import schedule_from
from nasgrow.training.atomic_files import to_json, write_text

TRIALS_FOLDER = "trials"
"""The folder of the records in a study's folder."""

RUNS = "runs"
"""The folder of a study's runs, each named by its identity."""

Kind = Literal["baseline", "search", "fixed", "confirmation"]
"""Of trials: the final shape from scratch, schedules, fixed shapes that are searched, and fresh seeds."""

TRIAL_KINDS: tuple[Kind, ...] = get_args(Kind)

SEARCHED: tuple[Kind, ...] = ("baseline", "search", "fixed")
"""The kinds that a search trains, in their order."""

Status = Literal["running", "paused", "finished", "pruned", "diverged", "failed"]
"""``paused`` trials may be resumed, ``pruned`` ones not. A trial has ``failed`` if its workers kept dying."""


TUNING = "tuning of "
"""What the name of a trial begins with that tunes another one."""

Identity = Annotated[str, StringConstraints(pattern="^[0-9a-f]{12}$")]
"""A run's, after which its folder is named: a record that was tampered with names no other folder."""


@dataclass
class TrialRecord:
    """One trial: what it trains, and its results so far.

    Attributes:
        kind: Which of the study's Optuna studies it belongs to.
        number: Optuna's number within its kind.
        name: A known schedule's name, a baseline's size, or a confirmation's candidate.
        parameters: What the scheduler suggested.
        schedule: Start shape and events, as in a schedule file.
        words: The same in words.
        learning_rate: The peak.
        parameter_count: Parameters of the final shape.
        inference_flops: FLOPs of its forward pass for each token.
        schedule_seconds: Seconds that training the whole schedule once takes on the study's device, by the
            seconds of a step that the study measured; None if it has measured none.
        status: What became of it.
        evaluations: Fraction of the budget and validation loss at each evaluation of its first run.
        seeds: The seeds trained, in order.
        losses: The final validation loss for each; None where training did not finish.
        test: The loss on the test split for each, for confirmations.
        runs: The identity of the run of each seed, and the FLOPs executed that this trial accounts for.
        charged: FLOPs billed.
        executed: FLOPs that machines spent: less where a prefix was reused, or where another trial of the
            same run accounts for them.
        seconds: Wall time of training.
        tokens: Tokens trained on.
        resumed_at: The fraction of the budget that its latest job went on from.
        deaths: Workers that died training it.
        stalled: How many of them since it last went on from further than before.
        ended: When it ended, in seconds since 1970.
    """

    kind: Kind
    number: int
    name: str | None
    parameters: dict[str, Any]
    schedule: dict[str, Any]
    words: str
    learning_rate: float
    parameter_count: int
    inference_flops: int
    schedule_seconds: float | None = None
    status: Status = "running"
    evaluations: list[tuple[float, float]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    runs: dict[Identity, int] = field(default_factory=dict)
    charged: int = 0
    executed: int = 0
    seconds: float = 0.0
    tokens: int = 0
    resumed_at: float = -1.0
    deaths: int = 0
    stalled: int = 0
    ended: float | None = None

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will be trained of it."""
        return self.status not in ("running", "paused")

    @property
    def loss(self) -> float | None:
        """The mean of its final losses, if it has finished."""
        losses = [loss for loss in self.losses if loss is not None]
        return fmean(losses) if losses and self.status == "finished" else None

    def objective(self, name: str) -> float:
        """What a study minimises: the loss of a trial that has finished, or what it costs."""
        found = {
            "loss": self.loss,
            "parameters": self.parameter_count,
            "inference_flops": self.inference_flops,
            "seconds": self.schedule_seconds,
        }[name]
        assert found is not None
        return float(found)

    @property
    def tunes(self) -> bool:
        """Whether it tunes another trial, and so is none of those that the study asks for."""
        return (self.name or "").startswith(TUNING)

    @property
    def label(self) -> str:
        """What messages, confirmations and reports refer to it by."""
        return f"{self.kind} {self.number}"

    @property
    def title(self) -> str:
        """What people call it: the name of a known schedule or size, else what its schedule does."""
        known = None if self.tunes or self.kind == "confirmation" else self.name
        of, comma, budget = (known or "").partition(", ")
        if known is None or (self.kind == "baseline" and of.startswith("fixed ")):  # under another budget
            return short_name(schedule_from(self.schedule)) + comma + budget
        return known


def write_trial(folder: Path, record: TrialRecord) -> None:
    """Write the record of a trial of the study in ``folder``."""
    (folder / TRIALS_FOLDER).mkdir(exist_ok=True)
    path = folder / TRIALS_FOLDER / f"{record.kind}-{record.number:05d}.json"
    write_text(path, to_json(asdict(record), indent=2) + "\n")


_RECORD = TypeAdapter(TrialRecord)


def _refuse(path: Path) -> None:
    raise UserError(f"{path}: is damaged: remove it, and the study goes on without this trial")


def read_trials(folder: Path, damaged: Callable[[Path], None] = _refuse) -> list[TrialRecord]:
    """All trials of the study in ``folder``, by kind and number.

    Args:
        folder: The study's folder.
        damaged: Called with each record that cannot be read, which is then left out; raises ``UserError`` by
            default.
    """
    found = []
    for path in sorted((folder / TRIALS_FOLDER).glob("*.json")):
        try:
            found.append(_RECORD.validate_json(path.read_bytes()))
        except (OSError, ValueError):
            damaged(path)
    return found
