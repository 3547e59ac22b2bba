"""Deep Fusion (Mazzawi et al., 2023) of a model with itself.

Block-diagonal matrices of whole copies, and the average of their logits. Equal copies have equal gradients,
on the diagonal and off it, and would stay each other's mirror image. So all blocks get a little noise that
cancels over the copies of each input, through which copies begin to see each other.
"""

from __future__ import annotations

from nasgrow.growth.operators.blocks import diagonal, side_by_side
from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.operators.noise import cancelling
from nasgrow.operators import Fusion


def recipe(operator: Fusion, situation: Situation) -> Recipe:
    """Copies on the diagonal, and noise on it and off it."""
    s = situation
    tiles = side_by_side(s)
    return Recipe(diagonal(tiles, s), s.fill, s.lineage, cancelling(operator.noise, tiles, s))
