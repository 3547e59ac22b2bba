"""The contract of executors: the driver submits jobs, the executor trains them and reports events.

A job is one trial: the runs of all its seeds, one after the other. Jobs and events are plain data that travel
as JSON, so that a worker can be a process on this machine, a Ray task on another, or a simulation.
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
    """Which trial: its kind, and its number within that."""

    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


@dataclass(frozen=True)
class Job:
    """One trial to be trained, or to be trained further.

    Attributes:
        trial: Whose job it is.
        runs: A run for each seed.
        parameters: What the trial's schedule was decoded from, by which recorded runs are looked up.
        test: Whether the runs are evaluated on the test split as well.
    """

    trial: TrialKey
    runs: tuple[RunConfig, ...]
    parameters: Mapping[str, Any]
    test: bool = False

    def to_json(self) -> dict[str, Any]:
        """The job as plain data."""
        return {
            "trial": asdict(self.trial),
            "runs": [run.model_dump(mode="json") for run in self.runs],
            "parameters": dict(self.parameters),
            "test": self.test,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Job:
        """The job that :meth:`to_json` wrote."""
        trial = TrialKey(**data["trial"])
        runs = tuple(parse(RunConfig, run, str(trial)) for run in data["runs"])
        return Job(trial, runs, data["parameters"], data["test"])


@dataclass(frozen=True)
class RunOutcome:
    """The results and costs of one run so far.

    Attributes:
        identity: The run's.
        seed: Its seed.
        loss: The final validation loss; None if it has not finished.
        test: The loss on the test split, if the job asks for it.
        charged: FLOPs billed.
        executed: FLOPs spent on it by all machines, in this job and before.
        seconds: Wall time, in this job and before.
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
    """The first run of a trial was evaluated; the worker waits for a reply."""

    trial: TrialKey
    at: float
    loss: float


@dataclass(frozen=True)
class Progressed:
    """A trial trains on: where it is, for people who watch."""

    trial: TrialKey
    stage: int
    stages: int
    fraction: float
    loss: float | None


@dataclass(frozen=True)
class Finished:
    """A job is over. ``interrupted`` means that the executor was stopped; the trial's state is saved."""

    trial: TrialKey
    status: Status | Literal["interrupted"]
    runs: tuple[RunOutcome, ...]
    evaluations: tuple[tuple[float, float], ...] = ()
    """Of the first run: fraction of the budget and validation loss."""


@dataclass(frozen=True)
class Died:
    """The worker of a trial died (killed, out of memory, its node gone): the driver resubmits the job."""

    trial: TrialKey
    reason: str


@dataclass(frozen=True)
class Failed:
    """A worker raised an error, which a retry would raise again: the search stops.

    Attributes:
        message: The error in one line.
        traceback: Where it was raised; None if it is the user's mistake.
    """

    message: str
    traceback: str | None


@dataclass(frozen=True)
class Warned:
    """Something went wrong without ending a trial."""

    message: str


Event = Evaluated | Progressed | Finished | Died | Failed | Warned

_EVENTS = {one.__name__: TypeAdapter(one) for one in get_args(Event)}


def event_to_json(event: Event) -> dict[str, Any]:
    """An event as plain data."""
    return {"event": type(event).__name__, **asdict(event)}


def event_from_json(data: dict[str, Any]) -> Event:
    """The event that :func:`event_to_json` wrote."""
    event: Event = _EVENTS[data.pop("event")].validate_python(data)
    return event


class Executor(ABC):
    """Trains jobs, several at once. As a context manager it stops its workers on leaving."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many jobs can be trained at once, at the moment."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Start a job; the driver submits at most :attr:`slots` at once."""

    @abstractmethod
    def reply(self, trial: TrialKey, decision: Decision) -> None:
        """Answer an :class:`Evaluated` of a trial. To one whose worker has died since, nothing happens."""

    @abstractmethod
    def events(self, timeout: float) -> Sequence[Event]:
        """What has happened, in order; waits up to ``timeout`` seconds if nothing has."""

    @abstractmethod
    def stop(self) -> None:
        """Ask all workers to save and stop: each running job soon ends as ``interrupted``, or has died."""

    @abstractmethod
    def close(self) -> None:
        """End all workers at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
