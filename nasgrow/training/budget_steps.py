"""Steps at fractions of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

from nasgrow.schedule import Stage
from nasgrow.training.run import Run


def first_step(stages: Sequence[Stage], target: int | Fraction) -> int | None:
    """The first step that begins with so much of the budget spent; None if no step does.

    It depends on what was trained until then alone: an event that happens before this step changes nothing.
    So where the operator's own cost reaches the target, it is the step after the event's.
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
    """The steps that begin with the next share of the budget spent, and that share.

    Where a step is larger than a share, the last of those it covers counts.
    """
    count = run.config.training.evaluations
    stages = run.stages
    steps = {i: first_step(stages, run.budget * i // count) for i in range(count)}
    return {step: i / count for i, step in steps.items() if step is not None}
