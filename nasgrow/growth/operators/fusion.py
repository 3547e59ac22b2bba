"""The operator ``fusion``: Deep Fusion (Mazzawi et al., 2023) of a model with itself.

Matrices are block-diagonal with full copies of the model, and the logits of the copies are averaged. Equal
copies have equal gradients, on the diagonal and off it, and would stay equal forever. So all blocks get a
little noise that cancels over the copies of each input. It makes the copies differ, and connects them.
"""

from __future__ import annotations

from nasgrow.growth.operators.blocks import diagonal, side_by_side
from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.operators.noise import cancelling
from nasgrow.operators import Fusion


def recipe(operator: Fusion, situation: Situation) -> Recipe:
    """Return a recipe with copies of the model on the diagonal blocks and noise on all blocks."""
    s = situation
    tiles = side_by_side(s)
    return Recipe(diagonal(tiles, s), s.fill, s.lineage, cancelling(operator.noise, tiles, s))
