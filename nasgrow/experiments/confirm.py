"""Confirmation: the best schedules and baselines again, with seeds that the search never saw.

The best of many trials looks better than it is. What is confirmed is trained anew with fresh seeds and judged
on the test split, and only that can be a verdict. A schedule that is confirmed meets its natural rivals:
models that have the shape of one of its long stages all the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from nasgrow.errors import UserError
from nasgrow.spaces.training import OPERATOR_FIELDS, SEARCHABLE
from nasgrow.study.baselines import PEAK
from nasgrow.study.study import Study
from nasgrow.study.trials import TrialRecord
from nasgrow.training.files import to_json


def candidates(records: Sequence[TrialRecord], top: int, each: str | None = None) -> list[TrialRecord]:
    """The best ``top`` schedules that grow, each at its best learning rate, and each size's best baseline.

    Args:
        records: The study's trials.
        top: How many schedules.
        each: A searched parameter, such as ``operator``: then the best ``top`` for each of its values.
    """
    finished = sorted(
        (record for record in records if record.loss is not None), key=lambda record: record.loss or 0.0
    )
    schedules: dict[str, TrialRecord] = {}
    for record in finished:
        if record.kind == "search" and record.schedule["events"]:
            schedules.setdefault(_what(record), record)
    chosen: dict[object, list[TrialRecord]] = {}
    for record in schedules.values():
        if each is not None and each not in record.parameters:
            raise UserError(
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


def fresh_seeds(study: Study, count: int) -> list[int]:
    """The smallest seeds that the search does not use."""
    used = set(study.config.seeds)
    return [seed for seed in range(count + len(used)) if seed not in used][:count]
