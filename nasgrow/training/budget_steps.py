"""Find the steps that begin at given fractions of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

from nasgrow.schedule import Stage
from nasgrow.training.run import Run


def first_step(stages: Sequence[Stage], target: int | Fraction) -> int | None:
    """Return the first step at whose beginning ``target`` of the budget is spent; None if there is none.

    The result depends only on the training before that step, not on an event right before it. So if the cost
    of an operator at an event reaches the target, the result is the second step after the event.

    Args:
        stages: The stages of a run.
        target: An amount in the unit of the budget, FLOPs or nanoseconds.
    """
    target = ceil(target)  # all else here is whole
    for stage in stages:
        steps = stage.steps_until(target)
        if stage.event_cost and target > stage.spent - stage.event_cost:
            steps = max(1, steps)
        if steps < stage.steps:
            return stage.first + steps
    return None


def evaluation_steps(run: Run) -> dict[int, float]:
    """Return the steps before which a run is evaluated, each with the fraction where it is due.

    Evaluations are due at equal distances over the budget, the first at 0. If several are due at
    one step, the last counts. The evaluation after the last step is not included.
    """
    count = run.config.training.evaluations
    stages = run.stages
    steps = {i: first_step(stages, run.budget * i // count) for i in range(count)}
    return {step: i / count for i, step in steps.items() if step is not None}
