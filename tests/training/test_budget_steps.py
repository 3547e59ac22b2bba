"""Steps at fractions of the budget."""

from __future__ import annotations

import pytest

from nasgrow.schedule import Stage
from nasgrow.shape import Shape
from nasgrow.training.budget_steps import first_step

SHAPE = Shape.uniform(hidden=8, layers=1, mlp=16, heads=2, key=4, value=4)


def stage(*, first: int, steps: int, step: int, spent: int, event: int = 0) -> Stage:
    """A stage of a budget of FLOPs."""
    costs = step, spent, event
    return Stage(SHAPE, first, steps, *costs, *costs)


SMALL = stage(first=0, steps=10, step=5, spent=0)
LARGE = stage(first=10, steps=10, step=10, spent=50)
DEAR = stage(first=10, steps=7, step=10, spent=80, event=30)


@pytest.mark.parametrize(
    ("target", "step"),
    [(0, 0), (1, 1), (5, 1), (46, 10), (50, 10), (51, 11), (60, 11), (140, 19), (141, None)],
)
def test_the_first_step_that_begins_with_so_much_spent(target: int, step: int | None) -> None:
    assert first_step([SMALL, LARGE], target) == step


@pytest.mark.parametrize(("target", "step"), [(46, 10), (50, 10), (51, 11), (80, 11), (81, 11), (91, 12)])
def test_what_an_operator_costs_moves_nothing_before_its_event(target: int, step: int) -> None:
    """Up to 50, all is as without the event; what its own 30 reach comes after it."""
    assert first_step([SMALL, DEAR], target) == step
