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
    """Return the trials to confirm, each with the best setting of its schedule or shape.

    They are the best schedules that grow, the best fixed shapes and the best baselines. For each other
    budget the baselines are the final shape and the best other fixed shape, from which a verdict reads how
    much compute a schedule saves.

    Args:
        records: The study's trials.
        top: How many schedules, and how many fixed shapes. Baselines do not count.
        each: A searched parameter, such as ``operator``. If given, the best ``top`` schedules for each of its
            values are confirmed. If None, the best ``top`` schedules of all.

    Raises:
        UserError: The search has no parameter ``each``.
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
                f"--each: the search has no parameter {each!r}; it has {', '.join(record.parameters)}"
            )
        rivals = chosen.setdefault(None if each is None else record.parameters[each], [])
        if len(rivals) < top:
            rivals.append(record)
    best = [record for rivals in chosen.values() for record in rivals]
    return [*best, *list(fixed.values())[:top], *baselines.values()]


def count_candidates(chosen: Sequence[TrialRecord], curves: Sequence[BaselineSize]) -> int:
    """Return how many trials will be confirmed after some sizes are tuned.

    Args:
        chosen: The candidates before that.
        curves: These sizes, under other budgets. Of the fixed shapes, one for each budget will be confirmed.
    """
    known = [record for record in chosen if record.kind != "baseline"]
    names = [record.name or "" for record in chosen if record.kind == "baseline"]
    return len(known) + len({_group(name) for name in [*names, *(size.name for size in curves)]})


def _group(name: str) -> str:
    """Return the group of a baseline: the final shape or all others, by budget. The best is confirmed."""
    return name if name.partition(", ")[0] == FINAL else f"fixed, {times_of(name)}"


def fresh_seeds(study: ResolvedStudy, count: int) -> list[int]:
    """Return the ``count`` smallest seeds that the search does not use."""
    used = set(study.config.seeds)
    return [seed for seed in range(count + len(used)) if seed not in used][:count]
