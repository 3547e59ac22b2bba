"""Read the records of a study for its report: trials, runs, events and curves.

A record that cannot be read is left out and listed. Reports read files only, no database.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from nasgrow.errors import UserError
from nasgrow.expansions import EXPANSION_TYPES
from nasgrow.report.folder import Happened, RunFolder, Tested, read_folder
from nasgrow.report.trajectory import Trajectory
from nasgrow.schedule import Event, Schedule, schedule_from
from nasgrow.study.counts import Counts, count_trials
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import RUNS, TRIALS_FOLDER, TrialRecord, read_trials
from nasgrow.training.records import DESCRIPTION

RUN_COLUMNS = [
    "run",
    "kind",
    "trial",
    "name",
    "status",
    "seed",
    "validation",
    "test",
    "learning_rate",
    "events",
    "first_event",
    "first_dimensions",
    "parameters",
    "inference_flops",
    "tokens",
    "charged",
    "executed",
    "seconds",
    "steps",
    "machine",
    "versions",
    "commit",
    "fingerprint",
    "words",
]
FROM_RESULT = ("tokens", "charged", "executed", "seconds", "steps")
EVENT_COLUMNS = ["run", "trial", "event", "dimensions", *(field.name for field in fields(Happened))]


@dataclass(frozen=True)
class Trial:
    """The record of a trial, and its parsed schedule."""

    record: TrialRecord
    schedule: Schedule

    @property
    def label(self) -> str:
        """Its kind and number, by which reports and commands name it."""
        return self.record.label

    @property
    def title(self) -> str:
        """The label, with the name of the schedule or of the fixed shape."""
        return f"{self.label} ({self.record.title})"

    @property
    def loss(self) -> float | None:
        """The mean validation loss over its seeds; None unless it has finished."""
        return self.record.loss

    @property
    def grows(self) -> bool:
        """Whether its schedule has events."""
        return bool(self.schedule.events)


@dataclass(frozen=True)
class Origins:
    """How many runs used each machine, software version, commit and data fingerprint.

    A run that was resumed on another machine counts for both. A run that several trials share
    counts once.
    """

    machines: Counter[str]
    versions: Counter[str]
    commits: Counter[str]
    fingerprints: Counter[str]


@dataclass(frozen=True)
class Records:
    """The records of a study: the only input of its report.

    Attributes:
        study: The study.
        folder: Its folder.
        trials: The trials that ended or are paused, sorted by kind and number.
        runs: A row for each run of each trial; a run that several trials share has several rows.
        events: A row for each event of each run; a shared run is listed under its first trial.
        curves: The evaluations of each run, by the run's identity, as far as they can be read.
        tested: The measurements on the test split of each run that has them, by its identity.
        origins: Machines, software versions, commits and data fingerprints.
        unfinished: The number of runs that were started but belong to none of these trials.
        damaged: The records that could not be read, a line each.
    """

    study: ResolvedStudy
    folder: Path
    trials: list[Trial]
    runs: pd.DataFrame
    events: pd.DataFrame
    curves: Mapping[str, Trajectory]
    tested: Mapping[str, Tested]
    origins: Origins
    unfinished: int
    damaged: list[str]

    def of_kind(self, kind: str) -> list[Trial]:
        """Return the trials of a kind."""
        return [trial for trial in self.trials if trial.record.kind == kind]

    @property
    def counts(self) -> Counts:
        """The numbers of trials, by kind and status."""
        return count_trials(self.study, [trial.record for trial in self.trials])

    def sample(self, identity: str) -> tuple[str, str] | None:
        """Return the prompt, and the text that a run's model generated after it; None if not recorded."""
        found = self.tested.get(identity)
        return (_printable(found.prompt), _printable(found.sample)) if found and found.sample else None


def load(
    study: ResolvedStudy, folder: Path, watch: Callable[[int, int], None] = lambda done, total: None
) -> Records:
    """Read the records of a study: its trials that ended or are paused, and their runs.

    A run that several trials share is read once. A file that cannot be read becomes a line of
    ``damaged``, and the rest is used. Runs that belong to no such trial are only counted, as
    ``unfinished``.

    Args:
        study: The study.
        folder: Its folder.
        watch: Called before each run and at the end, with the number of runs read and of all runs.
    """
    damaged: list[str] = []
    trials = _trials(folder, damaged)
    owners: dict[str, Trial] = {}  # trials at equal points share a run: the first to name it owns its events
    for trial in trials:
        for identity in trial.record.runs:
            owners.setdefault(identity, trial)
    folders: dict[str, RunFolder] = {}
    for identity, trial in owners.items():
        watch(len(folders), len(owners))
        finished = trial.record.status == "finished"
        folders[identity] = read_folder(folder / RUNS / identity, finished=finished)
    watch(len(folders), len(owners))
    begun = {path.parent.name for path in (folder / RUNS).glob(f"*/{DESCRIPTION}")}
    events = [row for identity, run in folders.items() for row in _events(identity, owners[identity], run)]
    return Records(
        study=study,
        folder=folder,
        trials=trials,
        runs=pd.DataFrame([row for trial in trials for row in _rows(trial, folders)], columns=RUN_COLUMNS),
        events=pd.DataFrame(events, columns=EVENT_COLUMNS),
        curves={identity: run.curve for identity, run in folders.items() if run.curve is not None},
        tested={identity: run.tested for identity, run in folders.items() if run.tested is not None},
        origins=Origins(
            Counter(one for run in folders.values() for one in run.origin.machines),
            Counter(one for run in folders.values() for one in run.origin.versions),
            Counter(one for run in folders.values() for one in run.origin.commits),
            Counter(run.origin.fingerprint for run in folders.values() if run.origin.fingerprint),
        ),
        unfinished=len(begun - owners.keys()),
        damaged=[*damaged, *(line for run in folders.values() for line in run.problems)],
    )


def _printable(text: str) -> str:
    """Replace by U+FFFD what a page cannot show: control characters, but not newlines and tabs."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


def in_order(trials: Iterable[Trial]) -> list[Trial]:
    """Sort trials by the time they ended; trials that have not ended follow, by number."""
    return sorted(trials, key=lambda trial: (trial.record.ended or math.inf, trial.record.number))


def dimensions(event: Event) -> list[str]:
    """Return the dimensions that an event grows, in the order of :data:`EXPANSION_TYPES`."""
    kinds = {type(expansion) for expansion in event.expansions}
    return [name for name, kind in EXPANSION_TYPES.items() if kind in kinds]


def _trials(folder: Path, damaged: list[str]) -> list[Trial]:
    """Read the trials that ended or are paused.

    For each trial whose record cannot be read or is invalid, add a line to ``damaged`` instead.
    """
    found = []
    for record in read_trials(
        folder, lambda path: damaged.append(f"{TRIALS_FOLDER}/{path.name}: is damaged")
    ):
        if record.status == "running":
            continue
        if record.status == "finished" and not record.runs:
            damaged.append(
                f"{record.kind} {record.number}: finished according to its record, which names no run"
            )
            continue
        try:
            found.append(Trial(record, schedule_from(record.schedule)))
        except UserError as error:
            damaged.append(f"the schedule of {record.kind} {record.number}: {error}")
    return found


def _events(identity: str, trial: Trial, run: RunFolder) -> Iterator[dict[str, Any]]:
    for index, (event, planned) in enumerate(zip(run.events, trial.schedule.events, strict=False)):
        grown = ", ".join(dimensions(planned))
        yield {"run": identity, "trial": trial.label, "event": index, "dimensions": grown, **vars(event)}


def _rows(trial: Trial, folders: Mapping[str, RunFolder]) -> Iterator[dict[str, Any]]:
    record, first = trial.record, next(iter(trial.schedule.events), None)
    tests = [*record.test, *[None] * len(record.runs)]
    for seed, loss, test, identity in zip(record.seeds, record.losses, tests, record.runs, strict=False):
        run = folders[identity]
        yield {
            "run": identity,
            "kind": record.kind,
            "trial": record.number,
            "name": record.name,
            "status": record.status if loss is None else "finished",
            "seed": seed,
            "validation": loss,
            "test": test,
            "learning_rate": record.learning_rate,
            "events": len(trial.schedule.events),
            "first_event": first.at if first else None,
            "first_dimensions": ", ".join(dimensions(first)) if first else None,
            "parameters": record.parameter_count,
            "inference_flops": record.inference_flops,
            **{name: getattr(run.result, name, None) for name in FROM_RESULT},
            "machine": "; ".join(run.origin.machines),
            "versions": "; ".join(run.origin.versions),
            "commit": "; ".join(run.origin.commits),
            "fingerprint": run.origin.fingerprint,
            "words": record.words,
        }
