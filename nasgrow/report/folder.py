"""Read the folder of one run; a file that cannot be read is listed as a problem, the rest is used."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, Discriminator, PlainValidator, TypeAdapter, ValidationError

from nasgrow.errors import UserError
from nasgrow.operators import operator_from
from nasgrow.report.trajectory import Trajectory
from nasgrow.strict import read_as
from nasgrow.training.records import DESCRIPTION, METRICS, RESULT, TEST, Result, read_result

T = TypeVar("T")
TRAIN = b'{"kind": "train"'
"""The beginning of a line with a training record.

Nine lines in ten are such. Reports skip them without parsing.
"""


@dataclass(frozen=True)
class Happened:
    """An event as the run recorded it. A loss or change that was not finite is NaN.

    Attributes:
        fraction: The fraction of the budget spent once the event has happened, its cost included.
        charged: The FLOPs charged once the event has happened, its cost included.
        loss_before: The validation loss before the event.
        loss_after: The validation loss after it, before any further step.
        change: The largest change of a logit, divided by the largest absolute logit before.
        recovery: The fraction of the budget from the event to the first later evaluation below
            ``loss_before``; None if there was none.
        operator: The operator that set the new parameters; None in old records, which do not name it.
    """

    fraction: float
    charged: int
    loss_before: float
    loss_after: float
    change: float
    recovery: float | None
    operator: str | None = None


@dataclass(frozen=True)
class RunOrigin:
    """The data, machines and software of a run; all empty if its description cannot be read.

    Attributes:
        fingerprint: The fingerprint of its data.
        machines: The machine on which the run started, then those that it moved to, in order.
        versions: The versions of Python and libraries on each of these machines.
        commits: The commit of nasgrow on each of these machines.
        operator: The operator of the training settings, for events whose records name none; None
            if the settings name none either.
    """

    fingerprint: str | None = None
    machines: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    operator: str | None = None


def _text(value: object) -> str:
    """Return a value as valid UTF-8 text: lone surrogates, which JSON allows, become question marks."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


Text = Annotated[str, PlainValidator(_text)]


@dataclass(frozen=True)
class Tested:
    """The measurements of a run on the test split.

    Attributes:
        test: The test loss; None if it is not finite.
        stretches: The loss on each segment of the test text, None where it is not finite; empty if
            not recorded.
        prompt: The beginning of the test split, given to the model as a prompt; may be empty.
        sample: The text that the model generated after the prompt; empty if none was recorded.
    """

    test: float | None
    stretches: tuple[float | None, ...] = ()
    prompt: Text = ""
    sample: Text = ""

    @property
    def parts(self) -> tuple[float, ...]:
        """The losses on segments, shifted so that their mean is the test loss.

        Unless every segment has a finite loss, it is the test loss alone. Without a test loss, it
        is empty.
        """
        if self.test is None:
            return ()
        found = [one for one in self.stretches if one is not None]
        if not found or len(found) < len(self.stretches):
            return (self.test,)
        return tuple(one - fmean(found) + self.test for one in found)


@dataclass(frozen=True)
class RunFolder:
    """The records of one run.

    Attributes:
        result: How the run ended; None if it has not ended or the file cannot be read.
        origin: Its data, machines and software.
        curve: Its evaluations; None if they cannot be read.
        events: Its events so far; empty if they cannot be read.
        problems: The files that could not be read, a line each.
        tested: Its measurements on the test split; None if it was not tested or the file cannot be
            read.
    """

    result: Result | None
    origin: RunOrigin
    curve: Trajectory | None
    events: tuple[Happened, ...]
    problems: tuple[str, ...]
    tested: Tested | None = None


@dataclass(frozen=True)
class _Machine:
    """A machine in a run's description."""

    device: Text
    cores: Text
    system: Text
    python: Text
    versions: dict[Text, Text]
    commit: Text | None = None

    @property
    def software(self) -> str:
        named = {"python": self.python, **self.versions}
        return ", ".join(f"{name} {version}" for name, version in named.items())


@dataclass(frozen=True)
class _Described:
    """The fields of a run's description that reports use."""

    run: dict[str, Any]
    machine: _Machine
    resumed_on: tuple[_Machine, ...] = ()


@dataclass(frozen=True)
class _Evaluation:
    kind: Literal["evaluation"]
    aligned: float
    fraction: float
    validation: float | None


@dataclass(frozen=True)
class _Event:
    kind: Literal["event"]
    fraction: float
    charged: int
    loss_before: float | None
    loss_after: float | None
    change: float | None
    operator: Annotated[str, AfterValidator(lambda name: str(operator_from(name)))] | None = None


@dataclass(frozen=True)
class _Final:
    kind: Literal["final"]
    fraction: float
    validation: float | None
    evaluation: float | None = None


_DESCRIPTION = TypeAdapter(_Described)
_TESTED = TypeAdapter(Tested)
_RECORD: TypeAdapter[_Evaluation | _Event | _Final] = TypeAdapter(
    Annotated[_Evaluation | _Event | _Final, Discriminator("kind")]
)


def read_folder(place: Path, *, finished: bool) -> RunFolder:
    """Read a run's folder. A file that is damaged or missing becomes one of its ``problems``.

    Test results may be missing for any run, and the result for a run that has not finished. Damaged
    lines in the metrics of such a run are skipped.

    Args:
        place: The folder.
        finished: Whether the run is known to have finished; then a missing result is a problem.
    """
    problems: list[str] = []

    def attempt(read: Callable[[Path], T], name: str) -> T | None:
        try:
            return read(place)
        except UserError:
            problems.append(_problem(place / name))
            return None

    expected = finished or (place / RESULT).exists()
    result = attempt(read_result, RESULT) if expected else None
    origin = attempt(_origin, DESCRIPTION) or RunOrigin()
    whole = result is not None and result.status == "finished"
    tested = (
        attempt(lambda folder: read_as(folder / TEST, _TESTED), TEST) if (place / TEST).exists() else None
    )
    records = attempt(lambda folder: _records(folder / METRICS, whole), METRICS)
    if records is None:
        return RunFolder(result, origin, None, (), tuple(problems), tested)
    curve, events = _metrics(records, origin.operator)
    return RunFolder(result, origin, curve, events, tuple(problems), tested)


def _origin(folder: Path) -> RunOrigin:
    described = read_as(folder / DESCRIPTION, _DESCRIPTION)
    machines = described.machine, *described.resumed_on
    run, training = described.run, described.run.get("training")
    operator = training.get("operator") if isinstance(training, dict) else None
    return RunOrigin(
        _text(run["fingerprint"]) if "fingerprint" in run else None,
        tuple(f"{one.device}, {one.cores} cores, {one.system}" for one in machines),
        tuple(one.software for one in machines),
        tuple(one.commit or "not recorded" for one in machines),
        None if operator is None else str(operator_from(operator)),
    )


def _problem(path: Path) -> str:
    where = "/".join(path.parts[-3:])
    return f"{where}: {'is damaged' if path.exists() else 'is missing'}"


def _records(path: Path, whole: bool) -> list[_Evaluation | _Event | _Final]:
    """Read the evaluations, events and final record of a metrics file, without damaged lines.

    Args:
        path: The file.
        whole: Whether the run has finished, so that the file must be complete.

    Raises:
        UserError: The file cannot be read. Or ``whole`` is set, and a line is damaged or the final
            record is missing.
    """
    try:
        *lines, _ = path.read_bytes().split(b"\n")  # text after the last newline was cut short
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    records, damaged = [], False
    for line in lines:
        if not line.startswith(TRAIN):
            try:
                records.append(_RECORD.validate_json(line))
            except ValidationError:
                damaged = True
    if whole and (damaged or not any(isinstance(record, _Final) for record in records)):
        raise UserError(f"{path}: is damaged")
    return records


def _metrics(
    records: list[_Evaluation | _Event | _Final], operator: str | None
) -> tuple[Trajectory, tuple[Happened, ...]]:
    """Return the validation curve and the events of a run.

    The curve has the evaluations with a finite loss; the one after the last step comes from the
    final record. For each event, find the first later evaluation below the loss before the event.

    Args:
        records: The run's records, in order.
        operator: The operator of the run's training settings, for events whose records name none.
    """
    looked = [
        (one.aligned, one.fraction, one.validation)
        for one in records
        if isinstance(one, _Evaluation) and one.validation is not None
    ]
    looked += [
        (1.0, one.fraction, one.evaluation)
        for one in records
        if isinstance(one, _Final) and one.evaluation is not None
    ]
    happened = []
    for one in records:
        if isinstance(one, _Event):
            before = _number(one.loss_before)
            below = [at for _, at, loss in looked if at > one.fraction and loss < before]
            happened.append(
                Happened(
                    one.fraction,
                    one.charged,
                    before,
                    _number(one.loss_after),
                    _number(one.change),
                    below[0] - one.fraction if below else None,
                    one.operator or operator,
                )
            )
    columns = np.array(looked, dtype=np.float64).reshape(-1, 3)
    marks = tuple((event.fraction, event.loss_before) for event in happened)
    curve = Trajectory(columns[:, 0], columns[:, 1], columns[:, 2], marks)
    return curve, tuple(happened)


def _number(value: float | None) -> float:
    """Return a recorded number, or NaN for null, which records hold where a number was not finite."""
    return math.nan if value is None else value
