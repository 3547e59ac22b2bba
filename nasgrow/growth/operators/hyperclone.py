"""HyperCloning (Samragh et al., 2024) on a transformer with RMSNorm: the model tiled n times, with noise.

A matrix whose inputs and outputs both grow n-fold becomes n x n tiles W / n: every copy of an output reads
all copies of its inputs. On the residual stream it is written as Net2Net's rule, copies x / sqrt(n), for the
sake of epsilon and tied embeddings; for one factor the two are the same up to that scale.

The paper's noise cancels over the copies of each input: see :mod:`nasgrow.growth.operators.noise`, which has
it for keys too.
"""

from __future__ import annotations

from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.operators.net2net import duplicates
from nasgrow.growth.operators.noise import cancelling
from nasgrow.growth.plan import plan_growth
from nasgrow.operators import HyperClone


def recipe(operator: HyperClone, situation: Situation) -> Recipe:
    """Duplicated units, and noise that cancels over the copies of each input."""
    s = situation
    plans = plan_growth(s.old, s.new, s.lineage, s.variant, units=duplicates(s))
    return Recipe(plans, s.fill, s.lineage, cancelling(operator.noise, plans, s))
