"""Baselines: fixed sizes from scratch, with learning rates tuned at least as well as the search's best.

They are runs with an empty schedule, through the same loop. Sizes are a list: shares of all that the space
grows at once, the final shape with one dimension alone at such a share, and, once schedules are confirmed,
the shapes at which these stay for long.

A schedule's learning rate was one of those that its space offers, so a size is trained at all of them, or at
those around the final shape's best; and as long as the best is the first or the last one that was tried, the
next beyond it is tried too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nasgrow.schedule import Schedule, schedule_from
from nasgrow.shape import Shape
from nasgrow.spaces import Choices, Range, training
from nasgrow.spaces.training import HIGHEST, LOWEST
from nasgrow.study.config import spaced
from nasgrow.study.study import Study
from nasgrow.study.trials import TrialRecord

PEAK = training.PEAK
"""The training field that baselines tune."""

RATES = 5
"""Learning rates to try where the space offers a range."""

EXTENSIONS = 3
"""How often a size's learning rates are extended beyond those that the study gives."""

FINAL = "final"
"""The name of the final shape."""

LONG = 0.2
"""The part of the budget from which on the shape of a stage is a rival of its schedule."""


@dataclass(frozen=True)
class Size:
    """One fixed size.

    Attributes:
        name: What it is called.
        shape: Its shape.
        times: Its budget as a multiple of the study's.
        around: Whether it is first tried at the learning rates around the final shape's best, not at all.
    """

    name: str
    shape: Shape
    times: float = 1.0
    around: bool = False


@dataclass(frozen=True)
class Tries:
    """What became of the learning rates that were tried for a size.

    Attributes:
        losses: The loss at each; None where training diverged, or has not ended.
        ended: Whether all of them have ended.
    """

    losses: Mapping[float, float | None]
    ended: bool = True


def baselines(study: Study) -> list[Size]:
    """All that a search trains from scratch: sizes at the study's budget, the final one at others."""
    others = [
        Size(f"{FINAL}, {times:.4g}x budget", study.final, times)
        for times in sorted(study.config.baselines.budgets)
    ]
    return sizes(study) + others


def sizes(study: Study) -> list[Size]:
    """Those at the study's budget, none twice.

    They are the final shape, those in between, the smallest start shape, and those of one dimension alone.
    Where a study starts from a checkpoint, each is grown from it at once, so none is smaller; and the
    checkpoint's own shape, which goes on without growth, is always one of them.
    """
    found = [Size(FINAL, study.final)]
    for share in sorted(study.config.baselines.shares, reverse=True):
        found.append(Size(f"{100 * share:.4g}% of final", study.space.fixed(share)))
    checkpoint = study.config.start
    if study.config.baselines.start or checkpoint is not None:
        found.append(Size("start", study.space.smallest if checkpoint is None else checkpoint.shape))
    if study.config.baselines.alone:
        found += _alone(study)
    distinct: dict[Shape, Size] = {}
    for size in filter(lambda size: study.reaches(size.shape), found):
        distinct.setdefault(size.shape, size)
    return list(distinct.values())


def _alone(study: Study) -> Iterator[Size]:
    """The final shape with one dimension at a share, or at its start; depth first, larger ones first."""
    config, grown = study.config.baselines, study.space.grown
    for dim in sorted(grown, key=lambda dim: dim != "layers"):
        shares = {share for share in config.shares if share > grown[dim]}
        if config.start and grown[dim]:
            shares.add(grown[dim])
        for share in sorted(shares, reverse=True):
            yield Size(f"{dim} at {100 * share:.4g}%", study.space.fixed(share, [dim]), around=True)


def long_stages(schedule: Schedule) -> Iterator[tuple[int, float, Shape]]:
    """The stages that take a fifth of the budget or more: place, part of the budget, and shape.

    A model that stays at such a shape all the time is the schedule's natural rival.
    """
    times = [0.0, *(event.at for event in schedule.events), 1.0]
    for place, ((begin, end), shape) in enumerate(zip(pairwise(times), schedule.shapes, strict=True), 1):
        if round(end - begin, 9) >= LONG:
            yield place, end - begin, shape


def stage_sizes(study: Study, records: Iterable[TrialRecord]) -> list[Size]:
    """The shapes of the long stages of some schedules, as fixed sizes that no other size is."""
    known = {size.shape for size in sizes(study)}
    found: dict[Shape, Size] = {}
    for record in records:
        schedule = _schedule(study, record)
        for place, _, shape in long_stages(schedule) if schedule.events else ():
            if shape not in known:
                found.setdefault(shape, Size(f"stage {place} of {record.label}", shape, around=True))
    return list(found.values())


def find_size(study: Study, name: str, search: Mapping[int, TrialRecord]) -> Size:
    """The fixed size of a name: one of the study's, or that of a stage of one of its search trials."""
    size = next((size for size in baselines(study) if size.name == name), None)
    if size is not None:
        return size
    stage, _, number = name.removeprefix("stage ").partition(" of search ")
    return Size(name, _schedule(study, search[int(number)]).shapes[int(stage) - 1], around=True)


def _schedule(study: Study, record: TrialRecord) -> Schedule:
    return schedule_from(record.schedule)


def learning_rates(study: Study) -> list[float]:
    """The peaks at which each size is trained first: all that a schedule may have, and those of the file.

    Where schedules have one only, the training's or a fixed one of the space: half and twice that as well,
    unless the file says others.
    """
    given = study.config.baselines.learning_rates
    offered = study.space.training.get(PEAK, Choices([study.config.training.learning_rate.peak]))
    if isinstance(offered, Range) and offered.step is None:
        rates = spaced(offered.low, offered.high, RATES)
    else:
        rates = [float(rate) for rate in offered.values]
    if len(rates) == 1 and not given:
        (peak,) = rates
        rates = [rate for rate in (peak / 2, peak, 2 * peak) if LOWEST <= rate <= HIGHEST]
    return sorted({*rates, *(given or [])})


def rates_to_try(study: Study, size: Size, own: Tries, final: Tries) -> list[float]:
    """The learning rates to try next for a size.

    Args:
        study: The study.
        size: The size.
        own: What was tried for it.
        final: What was tried for the final shape at the study's budget.
    """
    first = begin = learning_rates(study)
    if size.around:
        whole = Size(FINAL, study.final)
        if not final.ended or rates_to_try(study, whole, final, final):
            return []  # the final shape's best is not known yet
        begin = around(final.losses, first)
    missing = [rate for rate in begin if not any(math.isclose(rate, other) for other in own.losses)]
    if missing or not own.ended:
        return missing
    beyond = next_rate(own.losses, first)
    wanted = beyond is not None and (study.config.baselines.extended or beyond in first)
    return [beyond] if beyond is not None and wanted else []


def around(losses: Mapping[float, float | None], first: Sequence[float]) -> list[float]:
    """The best of the learning rates that were tried and those next to it; ``first`` if none worked."""
    worked = {rate: loss for rate, loss in losses.items() if loss is not None}
    if not worked:
        return list(first)
    tried = sorted(losses)
    best = tried.index(min(worked, key=lambda rate: worked[rate]))
    return tried[max(0, best - 1) : best + 2]


def next_rate(losses: Mapping[float, float | None], first: Sequence[float]) -> float | None:
    """The learning rate to try beyond those tried; None if the best lies between others, or at the limit.

    Args:
        losses: The loss at each rate that was tried; None where training diverged.
        first: The rates that the study gives: those beyond the ones tried come first.
    """
    tried = sorted(losses)
    worked = {rate: loss for rate, loss in losses.items() if loss is not None}
    if len(tried) < 2 or len(tried) >= len(first) + EXTENSIONS:
        return None
    best = min(worked, key=lambda rate: worked[rate]) if worked else tried[0]
    beyond = best
    if best == tried[0]:
        lower = [rate for rate in first if rate < best and not math.isclose(rate, best)]
        beyond = max(lower, default=tried[0] ** 2 / tried[1])
    elif best == tried[-1]:
        higher = [rate for rate in first if rate > best and not math.isclose(rate, best)]
        beyond = min(higher, default=tried[-1] ** 2 / tried[-2])
    return beyond if beyond != best and LOWEST <= beyond <= HIGHEST else None
