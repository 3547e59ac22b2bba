"""The operator ``masked`` (MSG, Yao et al., 2023): masks fade in new parts after the event.

Where the parameter table requires a zero slice, this operator puts fresh values times a mask m. At the event
m is 0, and the function is that of ``preserve``. Then m rises to 1 over a part of the budget, and
the slice fades in the values of a fresh model.

The paper masks the units themselves. A unit contributes through the tensors that read it, so masking the
slice that must be zero masks the unit. For the hidden size the mask is on all tensors that write new units,
which keeps the units out of the norm as well.
"""

from __future__ import annotations

from dataclasses import replace

from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.plan import plan_growth
from nasgrow.operators import Masked


def recipe(operator: Masked, situation: Situation) -> Recipe:
    """Return the recipe of ``preserve``, with masked free values in place of zeros."""
    s = situation
    plans = plan_growth(s.old, s.new, s.lineage, s.variant)
    return Recipe(
        {name: replace(plan, zeros=(), free=plan.free + plan.zeros) for name, plan in plans.items()},
        s.fill,
        s.lineage,
        masked={name: plan.zeros for name, plan in plans.items() if plan.zeros},
        opening=operator.opening,
    )
