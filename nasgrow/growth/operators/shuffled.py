"""The operator ``shuffled``, a control: keep the distribution of trained values, not what they learned.

The model grows by zero slices, as with ``preserve``. Then the old values of each tensor of a layer are
permuted within the tensor; where head groups merge into one tensor, within the part of each.
Embeddings, the final norm and the output projection stay. The moments are not permuted: none would
fit the permuted values, and in their old places they still have the right scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.plan import TensorPlan, plan_growth
from nasgrow.operators import Shuffled
from nasgrow.params import index


def recipe(operator: Shuffled, situation: Situation) -> Recipe:
    """Return the recipe of ``preserve`` with default options, but shuffle the copied old values.

    Values are permuted at random within each copied block of a tensor, so that its distribution
    stays and what was learned is lost. Only tensors of layers are shuffled; embeddings, the final
    norm and the output projection keep their values.
    """
    s = situation
    plans = plan_growth(s.old, s.new, s.lineage, s.variant)

    def permute(plan: TensorPlan, weights: Tensor, generator: torch.Generator) -> None:
        if plan.entry.layer is None:
            return
        for copy in plan.copies:
            old = weights[index(copy.put)]
            order = torch.randperm(old.numel(), generator=generator, device=generator.device)
            weights[index(copy.put)] = old.flatten()[order.to(old.device)].reshape(old.shape)

    changed = {name for name, plan in plans.items() if plan.entry.layer is not None}
    return Recipe(plans, s.fill, s.lineage, permute, changed)
