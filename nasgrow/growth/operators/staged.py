"""Staged training (Shen et al., 2022): doubling of width and of depth that preserves the loss.

Width: block-diagonal matrices of whole copies. The paper halves first moments of copies and quarters second
ones, all but those of the final norm, whose gain is halved: each copy has half the gradient. That is what the
engine does by shares and factors, only that here it is the stream that is scaled, and so the writers' moments
by sqrt(2) more and the readers' by sqrt(2) less. The paper's models have dropout, which tells copies apart;
here noise that cancels does, as with ``fusion``.

Depth: each layer is followed by a copy of itself that adds nothing. The paper closes a copy at its norms'
gains and its biases; then a ReLU stands at exactly zero, where it has no slope, and its MLP would never open.
So a copy is closed as every new layer is: at its output projections, or at its gains with the norm after the
block. What is not closed keeps the values and the history of the layer it copies.
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
    """One of the two growths that an event consists of: width, or depth."""
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
