"""Deep Fusion (Mazzawi et al., 2023) of a model with itself.

Block-diagonal matrices of whole copies, and the average of their logits. Equal copies have equal gradients,
on the diagonal and off it, and would stay each other's mirror image. So the blocks off the diagonal get a
little noise, through which copies begin to see each other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nasgrow.growth.operators.blocks import side_by_side
from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.plan import TensorPlan, index
from nasgrow.operators import Fusion


def recipe(operator: Fusion, situation: Situation) -> Recipe:
    """Copies on the diagonal, and noise off it."""
    s = situation

    def noise(plan: TensorPlan, weights: Tensor, generator: torch.Generator) -> None:
        old = s.parameters[plan.pattern.name].detach()
        size = operator.noise * float(old.double().square().mean().sqrt())
        for box in plan.zeros if size else ():
            part = weights[index(box)]
            drawn = torch.randn(part.shape, generator=generator, dtype=torch.float32, device="cpu")
            part.add_(drawn.to(part), alpha=size)

    return Recipe(side_by_side(s), s.fill, s.lineage, noise)
