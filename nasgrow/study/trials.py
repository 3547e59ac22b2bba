"""Trial records: one JSON file per trial, from which nasgrow rebuilds schedulers and makes reports.

The driver writes a trial's record when the trial starts, is paused, is resumed and ends. Optuna's storage
shows the same trials to the dashboard, but nasgrow itself reads only the records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, get_args

from pydantic import StringConstraints, TypeAdapter

from nasgrow.config import TrainingConfig
from nasgrow.errors import UserError
from nasgrow.names import short_name
from nasgrow.schedule import schedule_from
from nasgrow.spaces.training import Tunable
from nasgrow.training.atomic_files import to_json, write_text

TRIALS_FOLDER = "trials"
"""The folder of the records in a study's folder."""

RUNS = "runs"
"""The folder of a study's runs, each named by its identity."""

Kind = Literal["baseline", "search", "fixed", "confirmation"]
"""The kinds of trials.

``baseline``: the final shape from scratch, and fixed shapes under other budgets. ``search``: schedules.
``fixed``: fixed shapes that are searched. ``confirmation``: the best of these again with fresh seeds.
"""

TRIAL_KINDS: tuple[Kind, ...] = get_args(Kind)

SEARCHED: tuple[Kind, ...] = ("baseline", "search", "fixed")
"""The kinds that ``nasgrow search`` trains, in this order."""

Status = Literal["running", "paused", "finished", "pruned", "diverged", "failed"]
"""``paused`` trials may be resumed, ``pruned`` ones not. A trial is ``failed`` if its workers kept dying."""


TUNING = "tuning of "
"""The prefix of the name of a trial that tunes another one."""

Identity = Annotated[str, StringConstraints(pattern="^[0-9a-f]{12}$")]
"""The identity of a run, which is the name of its folder.

The pattern ensures that a tampered record cannot name another path.
"""


@dataclass
class TrialRecord:
    """One trial: what it trains, and its results so far.

    Attributes:
        kind: Its kind; each kind has an Optuna study.
        number: Optuna's number within its kind.
        name: A known schedule's name, a baseline's size, a confirmation's candidate, or ``tuning of TRIAL``;
            None for other trials.
        parameters: The parameters that the scheduler suggested.
        schedule: Start shape and events, as in a schedule file.
        words: The schedule in words.
        learning_rate: The peak learning rate.
        parameter_count: The number of parameters of the schedule's final shape.
        inference_flops: FLOPs per token of a forward pass of that shape.
        schedule_seconds: Seconds of training the whole schedule once on the study's device, by the measured
            seconds of its steps; None if they were not measured.
        status: Its status.
        evaluations: Fraction of the budget and validation loss at each evaluation of its first run.
        seeds: The seeds trained, in order.
        losses: The final validation loss of each seed; None where training did not finish.
        test: The loss of each seed on the test split, for confirmations; losses that are not finite
            are left out.
        runs: The identity of each seed's run, and the executed FLOPs of that run that count for this trial.
        charged: FLOPs that the trial is billed.
        executed: FLOPs that machines spent on it. They are less than ``charged`` if a prefix was reused, or
            if they count for another trial of the same run.
        seconds: Wall time of training.
        tokens: Tokens trained on.
        resumed_at: The furthest fraction of its training, over all seeds, that one of its jobs
            began or resumed from; -1 before the first job.
        deaths: How many workers died training it.
        stalled: How many of them died since ``resumed_at`` last advanced.
        ended: When it ended, in seconds since 1970; None before.
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
        """Whether the trial has ended and will not be resumed."""
        return self.status not in ("running", "paused")

    @property
    def loss(self) -> float | None:
        """The mean of its final losses over seeds; None if it has not finished."""
        losses = [loss for loss in self.losses if loss is not None]
        return fmean(losses) if losses and self.status == "finished" else None

    def objective(self, name: str) -> float:
        """Return the value of an objective: the loss, or a cost of the schedule; it must be known.

        The loss is known if the trial has finished, ``seconds`` if the study's steps are measured.
        """
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
        """Whether it tunes another trial, and so does not count towards the study's number of trials."""
        return (self.name or "").startswith(TUNING)

    @property
    def label(self) -> str:
        """The id by which messages, confirmations and reports refer to it, such as ``search 12``."""
        return f"{self.kind} {self.number}"

    @property
    def title(self) -> str:
        """Its name for readers: that of a known schedule or size, else a short name of its schedule.

        A short name ends with the searched training settings, such as ``operator net2net``, but not
        with the tuned ones.
        """
        known = None if self.tunes or self.kind == "confirmation" else self.name
        of, comma, budget = (known or "").partition(", ")
        if known is None or (self.kind == "baseline" and of.startswith("fixed ")):  # under another budget
            settings = [f", {name} {value}" for name, value in self.parameters.items() if _is_named(name)]
            return short_name(schedule_from(self.schedule)) + comma + budget + "".join(settings)
        return known


def _is_named(parameter: str) -> bool:
    """Return whether a parameter is a training setting other than the tuned ones."""
    return parameter.partition(".")[0] in TrainingConfig.model_fields and parameter not in get_args(Tunable)


def write_trial(folder: Path, record: TrialRecord) -> None:
    """Write the record of a trial of the study in ``folder``."""
    (folder / TRIALS_FOLDER).mkdir(exist_ok=True)
    path = folder / TRIALS_FOLDER / f"{record.kind}-{record.number:05d}.json"
    write_text(path, to_json(asdict(record), indent=2) + "\n")


_RECORD = TypeAdapter(TrialRecord)


def _refuse(path: Path) -> None:
    raise UserError(f"{path}: is damaged: remove it, and the study goes on without this trial")


def read_trials(folder: Path, damaged: Callable[[Path], None] = _refuse) -> list[TrialRecord]:
    """Read all trials of the study in ``folder``, sorted by kind and number.

    Args:
        folder: The study's folder.
        damaged: Called with the path of each record that cannot be read, which is then left out. By default
            it raises ``UserError``.
    """
    found = []
    for path in sorted((folder / TRIALS_FOLDER).glob("*.json")):
        try:
            found.append(_RECORD.validate_json(path.read_bytes()))
        except (OSError, ValueError):
            damaged(path)
    return found
