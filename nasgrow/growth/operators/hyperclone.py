"""The operator ``hyperclone``: HyperCloning (Samragh et al., 2024) on a transformer with RMSNorm.

The model is tiled n times. A matrix whose inputs and outputs both grow n-fold becomes n x n tiles W / n:
every copy of an output reads all copies of its inputs. The residual stream follows Net2Net's rule, copies
x / sqrt(n), because of epsilon and tied embeddings. For a single factor n this equals the paper's rule up to
that scale.

The paper's noise cancels over the copies of each input. :mod:`nasgrow.growth.operators.noise` extends it to
keys.
"""

from __future__ import annotations

from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.operators.net2net import duplicates
from nasgrow.growth.operators.noise import cancelling
from nasgrow.growth.plan import plan_growth
from nasgrow.operators import HyperClone


def recipe(operator: HyperClone, situation: Situation) -> Recipe:
    """Return a recipe of duplicated units, with noise that cancels over the copies of each input."""
    s = situation
    plans = plan_growth(s.old, s.new, s.lineage, s.variant, units=duplicates(s))
    return Recipe(plans, s.fill, s.lineage, cancelling(operator.noise, plans, s))
