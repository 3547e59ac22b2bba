"""Depth by copying layers: stacked (Gong et al. 2019, Du et al. 2024) or interleaved.

Layer i of the grown model is old layer c(i), values and optimizer state alike: c(i) = i mod N stacks the
model on itself, c(i) = floor(i N / N^) puts each layer's copies behind it. The first copy of a layer is the
layer itself, wherever the event inserted new ones.
"""

from __future__ import annotations

from nasgrow.expansions import Lineage
from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.plan import plan_growth
from nasgrow.operators import Operator


def recipe(operator: Operator, situation: Situation) -> Recipe:
    """Every layer a copy of the one that the declaration names."""
    s = situation
    copied = operator.copied_layers(len(s.old.layers), len(s.new.layers))
    assert copied is not None
    lineage: Lineage = tuple(
        origin if origin not in copied[:index] else None for index, origin in enumerate(copied)
    )
    plans = plan_growth(s.old, s.new, lineage, s.variant, copied=copied)
    return Recipe(plans, s.fill, lineage)
