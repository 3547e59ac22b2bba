"""The operator ``random``: new layers with the values of a fresh model, whose output is not zero.

It is what one would do without a rule that preserves the function. Old layers stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.plan import TensorPlan, plan_growth
from nasgrow.operators import Random


def recipe(operator: Random, situation: Situation) -> Recipe:
    """Return the recipe of ``preserve``, with fresh values in place of the zeros of new layers."""
    s = situation
    plans = plan_growth(s.old, s.new, s.lineage, s.variant)

    def refill(plan: TensorPlan, weights: Tensor, generator: torch.Generator) -> None:
        layer = plan.entry.layer
        if layer is not None and s.lineage[layer] is None:
            everything = tuple((0, size) for size in plan.entry.sizes)
            weights.copy_(s.fill(plan, everything, generator))

    return Recipe(plans, s.fill, s.lineage, refill)
