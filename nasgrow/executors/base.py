"""The executor interface: the driver submits jobs, the executor trains them and reports events.

A job trains one trial: a run for each seed, one after the other. Jobs and events are plain data that travel
as JSON. So a worker can be a process on this machine, a Ray actor on another, or a simulation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Literal, Self, get_args

from pydantic import TypeAdapter

from nasgrow.config import RunConfig
from nasgrow.schedulers.base import Decision
from nasgrow.strict import parse
from nasgrow.study.trials import Kind, Status


@dataclass(frozen=True)
class TrialKey:
    """Identifies a trial: its kind, and its number within that kind."""

    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


@dataclass(frozen=True)
class Job:
    """One trial to train, or to resume.

    Attributes:
        trial: The trial.
        runs: A run for each seed.
        parameters: The trial's parameters. Simulated executors look up recorded runs by them.
        test: Whether the runs are evaluated on the test split as well.
    """

    trial: TrialKey
    runs: tuple[RunConfig, ...]
    parameters: Mapping[str, Any]
    test: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the job as plain data."""
        return {
            "trial": asdict(self.trial),
            "runs": [run.model_dump(mode="json") for run in self.runs],
            "parameters": dict(self.parameters),
            "test": self.test,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Job:
        """Read the job that :meth:`to_json` returned."""
        trial = TrialKey(**data["trial"])
        runs = tuple(parse(RunConfig, run, str(trial)) for run in data["runs"])
        return Job(trial, runs, data["parameters"], data["test"])


@dataclass(frozen=True)
class RunOutcome:
    """The results and costs of one run so far.

    Attributes:
        identity: The run's identity, a hash of its description.
        seed: Its seed.
        loss: The final validation loss; None unless the run has finished.
        test: The loss on the test split; None unless the job asks for it, the run has finished, and
            the loss is finite.
        charged: FLOPs that the run is billed so far.
        executed: FLOPs that machines spent on it, in this job and earlier ones.
        seconds: Wall time, in this job and earlier ones.
        tokens: Tokens trained on.
    """

    identity: str
    seed: int
    loss: float | None
    test: float | None
    charged: int
    executed: int
    seconds: float
    tokens: int


@dataclass(frozen=True)
class Evaluated:
    """A worker evaluated the first run of a trial, and waits for the driver's reply.

    Attributes:
        trial: The trial.
        at: The fraction of the budget at which the evaluation was due.
        loss: The validation loss; it may be NaN or infinite.
    """

    trial: TrialKey
    at: float
    loss: float


@dataclass(frozen=True)
class Progressed:
    """The current progress of a trial, to be displayed.

    Attributes:
        trial: The trial.
        stage: The stage of the run that is being trained, counted from 1.
        stages: The number of stages of that run.
        fraction: The fraction of the budget spent, averaged over all runs of the job.
        loss: The latest training loss of that run; None if there is none yet.
    """

    trial: TrialKey
    stage: int
    stages: int
    fraction: float
    loss: float | None


@dataclass(frozen=True)
class Finished:
    """A job has ended: its trial finished, diverged, paused, or was interrupted.

    ``interrupted`` means that the executor was stopped; the trial's state is saved.
    """

    trial: TrialKey
    status: Status | Literal["interrupted"]
    runs: tuple[RunOutcome, ...]
    """The runs in order, up to the first that did not finish; empty if no worker reported any."""
    evaluations: tuple[tuple[float, float], ...] = ()
    """The fraction of the budget and the validation loss of each evaluation of the first run."""


@dataclass(frozen=True)
class Died:
    """The worker of a trial died: it was killed, ran out of memory, or its node left the cluster.

    The driver resubmits the job.
    """

    trial: TrialKey
    reason: str


@dataclass(frozen=True)
class Failed:
    """A worker raised an error that a retry would raise again, so the search stops.

    Attributes:
        message: The error in one line.
        traceback: Its traceback; None if the user or the operating system caused the error.
    """

    message: str
    traceback: str | None


@dataclass(frozen=True)
class Warned:
    """A warning: something went wrong without ending a trial."""

    message: str


Event = Evaluated | Progressed | Finished | Died | Failed | Warned

_EVENTS = {one.__name__: TypeAdapter(one) for one in get_args(Event)}


def event_to_json(event: Event) -> dict[str, Any]:
    """Return an event as plain data."""
    return {"event": type(event).__name__, **asdict(event)}


def event_from_json(data: dict[str, Any]) -> Event:
    """Read the event that :func:`event_to_json` returned."""
    event: Event = _EVENTS[data.pop("event")].validate_python(data)
    return event


class Executor(ABC):
    """Trains jobs, several at once. As a context manager it stops its workers on leaving."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many jobs the executor can train at once, at the moment."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Start a job; the driver never has more than :attr:`slots` jobs running."""

    @abstractmethod
    def reply(self, trial: TrialKey, decision: Decision) -> None:
        """Reply to the trial's last :class:`Evaluated` event; ignored if its worker has died."""

    @abstractmethod
    def events(self, timeout: float) -> Sequence[Event]:
        """Return new events in order; wait up to ``timeout`` seconds if there are none."""

    @abstractmethod
    def stop(self) -> None:
        """Ask all workers to save and stop, without waiting for them.

        :meth:`events` still returns the end of each running job: as ``interrupted``, unless it
        ended or died before its worker noticed.
        """

    @abstractmethod
    def close(self) -> None:
        """End all workers. The executor cannot be used after that, and events are lost."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
