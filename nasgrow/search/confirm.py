"""Confirmation: the best schedules and baselines again, with seeds that the search never saw.

The best of many trials looks better than it is. What is confirmed is trained anew with fresh seeds and judged
on the test split, and only that can be a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from nasgrow.config import RunConfig
from nasgrow.search.baselines import PEAK
from nasgrow.search.outcome import RUNS
from nasgrow.search.spaces.training import OPERATOR_FIELDS, SEARCHABLE
from nasgrow.search.study import Study
from nasgrow.search.trials import TrialRecord, read_trials
from nasgrow.training.files import to_json
from nasgrow.training.folder import read_run


def candidates(records: Sequence[TrialRecord], top: int, each: str | None = None) -> list[TrialRecord]:
    """The best ``top`` schedules that grow, each at its best learning rate, and each size's best baseline.

    Args:
        records: The study's trials.
        top: How many schedules.
        each: A searched parameter, such as ``operator``: then the best ``top`` for each of its values.
    """
    finished = sorted((record for record in records if record.status == "finished"), key=loss)
    schedules: dict[str, TrialRecord] = {}
    for record in finished:
        if record.kind == "search" and record.schedule["events"]:
            schedules.setdefault(_what(record), record)
    chosen: dict[object, list[TrialRecord]] = {}
    for record in schedules.values():
        if each is not None and each not in record.parameters:
            raise ValueError(
                f"--each: no such parameter was searched: {each!r}; there are {', '.join(record.parameters)}"
            )
        rivals = chosen.setdefault(None if each is None else record.parameters[each], [])
        if len(rivals) < top:
            rivals.append(record)
    fixed: dict[str | None, TrialRecord] = {}
    for record in finished:
        if record.kind == "baseline":
            fixed.setdefault(record.name, record)
    return [*(record for rivals in chosen.values() for record in rivals), *fixed.values()]


def _what(record: TrialRecord) -> str:
    """What a trial trained, whatever its learning rate: its schedule, and what else it searched."""
    searched = {name: record.parameters[name] for name in SEARCHABLE if name in record.parameters}
    searched.pop(PEAK, None)
    if all("operator" in event for event in record.schedule["events"]):
        searched = {name: value for name, value in searched.items() if name not in OPERATOR_FIELDS}
    return to_json([record.schedule, searched])


def loss(record: TrialRecord) -> float:
    """The mean validation loss of a trial that finished."""
    return fmean(value for value in record.losses if value is not None)


def fresh_seeds(study: Study, count: int) -> list[int]:
    """The smallest seeds that the search does not use."""
    used = set(study.config.seeds)
    return [seed for seed in range(count + len(used)) if seed not in used][:count]


def candidate_name(record: TrialRecord) -> str:
    """How a confirmation names what it confirms."""
    return f"{record.kind} {record.number}"


def candidate_config(folder: Path, name: str) -> RunConfig:
    """The run of a candidate, with its first seed, as its own description says."""
    record = next(record for record in read_trials(folder) if candidate_name(record) == name)
    return read_run(folder / RUNS / record.runs[0]).config
