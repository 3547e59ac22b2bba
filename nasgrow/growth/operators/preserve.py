"""The paper's operator: zero slices, rescaled old values, free parts (Gesmundo & Maile, 2023)."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from nasgrow.growth.operators.contract import Fill, Recipe, Situation
from nasgrow.growth.plan import Box, TensorPlan, plan_growth
from nasgrow.operators import Preserve


def recipe(operator: Preserve, situation: Situation) -> Recipe:
    """The parameter table as it stands; the options choose the free values."""
    s = situation
    plans = plan_growth(s.old, s.new, s.lineage, s.variant)
    fills: dict[str, Fill] = {"fresh": s.fill, "matched": _Matched(s), "copy": _Copying(s)}
    return Recipe(plans, fills[operator.init], s.lineage)


class _Matched:
    """Fresh values, scaled to the root mean square of the tensor's old ones; constants as they are."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation

    def __call__(self, plan: TensorPlan, box: Box, generator: torch.Generator) -> Tensor:
        values = self._situation.fill(plan, box, generator)
        old = self._situation.parameters[plan.pattern.name].detach()
        if plan.entry.row.start is not None or not old.any():
            return values
        return values * float(old.double().square().mean().sqrt() / plan.entry.fan_in**-0.5)


class _Copying:
    """Old values: along every axis the old units in turn."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation

    def __call__(self, plan: TensorPlan, box: Box, generator: torch.Generator) -> Tensor:
        values = self._situation.parameters[plan.pattern.name].detach().view(plan.pattern.sizes)
        for axis, (start, stop) in enumerate(box):
            indices = torch.arange(start, stop, device=values.device) % values.shape[axis]
            values = values.index_select(axis, indices)
        assert values.numel() == prod(stop - start for start, stop in box)
        return values
