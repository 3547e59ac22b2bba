"""Masked growth (MSG, Yao et al., 2023): new parts open over a number of steps.

Where the parameter table wants a zero slice, there are fresh values behind a mask m. At the event m is 0, and
the function that of ``preserve``; then m rises to 1, and the zeros fill with what a fresh model would have
there. The paper masks the units themselves. A unit contributes through what reads it, so a mask on the slice
that must be zero is a mask on the unit; for the hidden size it is on all that writes new units, which keeps
them out of the norm as well.
"""

from __future__ import annotations

from dataclasses import replace

from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.plan import plan_growth
from nasgrow.operators import Masked


def recipe(operator: Masked, situation: Situation) -> Recipe:
    """The parameter table, with free values behind masks in place of its zeros."""
    s = situation
    plans = plan_growth(s.old, s.new, s.lineage, s.variant)
    return Recipe(
        {name: replace(plan, zeros=(), free=plan.free + plan.zeros) for name, plan in plans.items()},
        s.fill,
        s.lineage,
        masked={name: plan.zeros for name, plan in plans.items() if plan.zeros},
        opening=operator.opening,
    )
