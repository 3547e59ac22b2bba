"""The operators ``stack`` (Gong et al. 2019, Du et al. 2024) and ``interleave``: depth by copying layers.

Layer i of the grown model is a copy of old layer c(i), with its optimizer state. c(i) = i mod N stacks the
model on itself; c(i) = floor(i N / N^) puts each layer's copies directly after it. The first copy of a layer
is the layer itself. The positions at which the event inserts layers do not matter.
"""

from __future__ import annotations

from nasgrow.expansions import Lineage
from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.plan import plan_growth
from nasgrow.operators import Operator


def recipe(operator: Operator, situation: Situation) -> Recipe:
    """Return a recipe that copies each layer from the old one that ``operator.copied_layers`` names."""
    s = situation
    copied = operator.copied_layers(len(s.old.layers), len(s.new.layers))
    assert copied is not None
    lineage: Lineage = tuple(
        origin if origin not in copied[:index] else None for index, origin in enumerate(copied)
    )
    plans = plan_growth(s.old, s.new, lineage, s.variant, copied=copied)
    return Recipe(plans, s.fill, lineage)
