"""Baselines: fixed sizes from scratch, with learning rates tuned at least as well as the search's best.

They are runs with an empty schedule, through the same loop. A schedule's learning rate was one of those that
its space offers, so each size is trained at all of them; and as long as the best is the first or the last one
that was tried, the next beyond it is tried too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nasgrow.search.config import spaced
from nasgrow.search.spaces import Choices, Range, training
from nasgrow.search.spaces.training import HIGHEST, LOWEST
from nasgrow.search.study import Study
from nasgrow.shape import Shape

PEAK = training.PEAK
"""The training field that baselines tune."""

RATES = 5
"""Learning rates to try where the space offers a range."""

EXTENSIONS = 3
"""How often a size's learning rates are extended beyond those it was given."""


@dataclass(frozen=True)
class Size:
    """One fixed size; ``times`` is its budget as a multiple of the study's."""

    name: str
    shape: Shape
    times: float = 1.0


def baselines(study: Study) -> list[Size]:
    """All that is trained from scratch: the sizes at the study's budget, the final one at others."""
    others = [
        Size(f"final, {times:.4g}x budget", study.final, times)
        for times in sorted(study.config.baselines.budgets)
    ]
    return sizes(study) + others


def sizes(study: Study) -> list[Size]:
    """Those at the study's budget, the largest first, none twice.

    They are the final shape, those in between, and the smallest start shape.
    """
    found = [Size("final", study.final)]
    for share in sorted(study.config.baselines.shares, reverse=True):
        found.append(Size(f"{100 * share:.4g}% of final", study.space.fixed(share)))
    if study.config.baselines.start:
        found.append(Size("start", study.space.smallest))
    distinct: dict[Shape, Size] = {}
    for size in found:
        distinct.setdefault(size.shape, size)
    return list(distinct.values())


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


def next_rate(losses: Mapping[float, float | None], first: Sequence[float]) -> float | None:
    """The learning rate to try beyond those tried; None if the best lies between others, or at the limit.

    Args:
        losses: The loss at each rate that was tried; None where training diverged.
        first: The rates that were tried first.
    """
    tried = sorted(losses)
    worked = {rate: loss for rate, loss in losses.items() if loss is not None}
    if len(tried) < 2 or len(tried) >= len(first) + EXTENSIONS:
        return None
    best = min(worked, key=lambda rate: worked[rate]) if worked else tried[0]
    beyond = best
    if best == tried[0]:
        beyond = tried[0] ** 2 / tried[1]
    elif best == tried[-1]:
        beyond = tried[-1] ** 2 / tried[-2]
    return beyond if beyond != best and LOWEST <= beyond <= HIGHEST else None
