"""HyperCloning (Samragh et al., 2024) on a transformer with RMSNorm: the model tiled n times, with noise.

A matrix whose inputs and outputs both grow n-fold becomes n x n tiles W / n: every copy of an output reads
all copies of its inputs. On the residual stream it is written as Net2Net's rule, copies x / sqrt(n), for the
sake of epsilon and tied embeddings; for one factor the two are the same up to that scale.

Noise: copies of an input are equal, so noise on the tiles that read them has no effect if it adds up to zero
over the copies: +N and -N of two. Each copy of an output has noise of its own, so copies part, and the
function is still exact. Embeddings, gains and biases read no copies, and have none.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.operators.net2net import duplicates
from nasgrow.growth.plan import Box, Copy, TensorPlan, index, plan_growth
from nasgrow.operators import HyperClone


def recipe(operator: HyperClone, situation: Situation) -> Recipe:
    """Duplicated units, and noise that cancels over the copies of each input."""
    s = situation

    def noise(plan: TensorPlan, weights: Tensor, generator: torch.Generator) -> None:
        for tiles in _reading_alike(plan):
            if operator.noise and len(tiles) > 1:
                parts = [weights[index(tile)] for tile in tiles]
                sizes = (len(parts), *parts[0].shape)
                drawn = torch.randn(sizes, generator=generator, dtype=torch.float64, device="cpu")
                drawn -= drawn.mean(0)  # now they add up to 0, and have a little less variance
                size = operator.noise * float(torch.stack(parts).double().square().mean().sqrt())
                for part, own in zip(parts, drawn, strict=True):
                    part.add_(own.to(part), alpha=size * sqrt(len(parts) / (len(parts) - 1)))

    plans = plan_growth(s.old, s.new, s.lineage, s.variant, units=duplicates(s))
    return Recipe(plans, s.fill, s.lineage, noise)


def _reading_alike(plan: TensorPlan) -> list[list[Box]]:
    """The boxes of a matrix that copies of the same inputs go through to the same outputs."""
    inputs = len(plan.entry.row.dims[0])
    if len(plan.entry.row.dims) < 2 or plan.entry.row.start is not None:
        return []

    def alike(copy: Copy) -> tuple[str, Box, Box]:
        return copy.source.name, copy.take[:inputs], copy.put[inputs:]

    tiles: dict[tuple[str, Box, Box], list[Box]] = {}
    for copy in plan.copies:
        tiles.setdefault(alike(copy), []).append(copy.put)
    return list(tiles.values())
