"""The paper's operator: zero slices, rescaled old values, free parts (Gesmundo & Maile, 2023)."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.plan import Box, TensorPlan, plan_growth
from nasgrow.operators import Preserve


def recipe(operator: Preserve, situation: Situation) -> Recipe:
    """The parameter table as it stands; the options choose the free values."""
    s = situation

    def matched(plan: TensorPlan, box: Box, generator: torch.Generator) -> Tensor:
        values = s.fill(plan, box, generator)
        old = s.parameters[plan.pattern.name].detach()
        if plan.entry.row.start is not None or not old.any():
            return values  # a constant; or a tensor that has not been trained yet
        return values * float(old.double().square().mean().sqrt() * sqrt(plan.entry.fan_in))

    plans = plan_growth(s.old, s.new, s.lineage, s.variant)
    return Recipe(plans, s.fill if operator.init == "fresh" else matched, s.lineage)
