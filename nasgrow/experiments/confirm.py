"""Confirmation: the best schedules and baselines again, with seeds that the search never saw.

The best of many trials looks better than it is. What is confirmed is trained anew with fresh seeds and judged
on the test split, and only that can be a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from nasgrow.errors import UserError
from nasgrow.study.baselines import FINAL, best_first, times_of
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord
from nasgrow.study.tuning import contender


def candidates(records: Sequence[TrialRecord], top: int, each: str | None = None) -> list[TrialRecord]:
    """The best ``top`` schedules that grow and fixed shapes, each at its best setting, and the baselines.

    Under another budget these are the final shape and the best fixed shape there: a verdict reads the curve
    of the first, and the envelope of both. The other fixed shapes were tuned there to know which is the best.

    Args:
        records: The study's trials.
        top: How many schedules, and how many fixed shapes.
        each: A searched parameter, such as ``operator``: then the best ``top`` schedules for each of its
            values.
    """
    ranked = best_first(records)
    schedules, fixed, baselines = dict[str, TrialRecord](), dict[str, TrialRecord](), dict[str, TrialRecord]()
    for record in ranked:
        if record.kind == "search" and record.schedule["events"]:
            schedules.setdefault(contender(record), record)
        elif record.kind == "fixed":
            fixed.setdefault(contender(record), record)
        elif record.kind == "baseline":
            name = record.name or ""
            final = name.partition(", ")[0] == FINAL
            baselines.setdefault(name if final else f"fixed, {times_of(name)}", record)
    chosen: dict[object, list[TrialRecord]] = {}
    for record in schedules.values():
        if each is not None and each not in record.parameters:
            raise UserError(
                f"--each: no such parameter was searched: {each!r}; there are {', '.join(record.parameters)}"
            )
        rivals = chosen.setdefault(None if each is None else record.parameters[each], [])
        if len(rivals) < top:
            rivals.append(record)
    best = [record for rivals in chosen.values() for record in rivals]
    return [*best, *list(fixed.values())[:top], *baselines.values()]


def fresh_seeds(study: ResolvedStudy, count: int) -> list[int]:
    """The smallest seeds that the search does not use."""
    used = set(study.config.seeds)
    return [seed for seed in range(count + len(used)) if seed not in used][:count]
