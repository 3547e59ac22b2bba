"""The operator ``staged`` (Shen et al., 2022): doubling of width and of depth that preserves the loss.

Width: matrices are block-diagonal with full copies of the model. Each copy has half the gradient. So the
paper halves the first moments of copies and quarters the second moments, except those of the final norm,
whose gain it halves. The engine does the same by shares and factors. The only difference is that here the
residual stream is scaled, so the moments of tensors that write it are larger by sqrt(2), and those of
tensors that read it smaller by sqrt(2). The paper's models have dropout, which makes copies diverge; here
noise that cancels does, as with ``fusion``.

Depth: each layer is followed by a copy of itself that adds nothing. The paper sets the copy's norm gains and
biases to zero. Then the input of a ReLU is exactly zero, where it has no slope, and the copy's MLP would
never train. So here, as in every new layer, the output projections are zero, or the gains with the norm
after the block. The other tensors keep the values and the optimizer state of the layer that they copy.
"""

from __future__ import annotations

from dataclasses import replace

from nasgrow.growth.operators import stack
from nasgrow.growth.operators.blocks import diagonal, side_by_side
from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.operators.noise import cancelling
from nasgrow.growth.plan import TensorPlan
from nasgrow.operators import Staged


def recipe(operator: Staged, situation: Situation) -> Recipe:
    """Return the recipe of one of the two growths of an event: width or depth."""
    s = situation
    if len(s.new.layers) == len(s.old.layers):
        tiles = side_by_side(s)
        return Recipe(diagonal(tiles, s), s.fill, s.lineage, cancelling(operator.noise, tiles, s))
    stacked = stack.recipe(operator, s)

    def closed(plan: TensorPlan) -> TensorPlan:
        layer = plan.entry.layer
        if layer is None or stacked.lineage[layer] is not None or not plan.entry.closed(s.variant):
            return plan
        return replace(plan, copies=(), zeros=(tuple((0, size) for size in plan.entry.sizes),))

    return replace(stacked, plans={name: closed(plan) for name, plan in stacked.plans.items()})
