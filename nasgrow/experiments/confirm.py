"""Confirmation: choose the best schedules and baselines, which are then trained again with fresh seeds.

The best of many trials looks better than it is, because it was selected by its loss. So a verdict needs new
runs, with seeds that the search never used, evaluated on the test split.
"""

from __future__ import annotations

from collections.abc import Sequence

from nasgrow.errors import UserError
from nasgrow.study.baselines import FINAL, BaselineSize, best_first, times_of
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord
from nasgrow.study.tuning import contender


def candidates(records: Sequence[TrialRecord], top: int, each: str | None = None) -> list[TrialRecord]:
    """Return the trials to confirm: the best schedules, the best fixed shapes, and the best baselines.

    Each schedule and fixed shape is at its best setting. Of the baselines under another budget, only the
    final shape and the best fixed shape are confirmed: a verdict uses the curve of the final shape over
    budgets, and the envelope of both.

    Args:
        records: The study's trials.
        top: How many schedules, and how many fixed shapes.
        each: A searched parameter, such as ``operator``. If given, the best ``top`` schedules for each of its
            values are confirmed.
    """
    ranked = best_first(records)
    schedules, fixed, baselines = dict[str, TrialRecord](), dict[str, TrialRecord](), dict[str, TrialRecord]()
    for record in ranked:
        if record.kind == "search" and record.schedule["events"]:
            schedules.setdefault(contender(record), record)
        elif record.kind == "fixed":
            fixed.setdefault(contender(record), record)
        elif record.kind == "baseline":
            baselines.setdefault(_group(record.name or ""), record)
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


def count_candidates(chosen: Sequence[TrialRecord], curves: Sequence[BaselineSize]) -> int:
    """Return how many candidates there are once these sizes have been tuned, given those before that."""
    known = [record for record in chosen if record.kind != "baseline"]
    names = [record.name or "" for record in chosen if record.kind == "baseline"]
    return len(known) + len({_group(name) for name in [*names, *(size.name for size in curves)]})


def _group(name: str) -> str:
    """Return the group of a baseline with this name: the best of each group is confirmed."""
    return name if name.partition(", ")[0] == FINAL else f"fixed, {times_of(name)}"


def fresh_seeds(study: ResolvedStudy, count: int) -> list[int]:
    """Return the smallest seeds that the search does not use."""
    used = set(study.config.seeds)
    return [seed for seed in range(count + len(used)) if seed not in used][:count]
