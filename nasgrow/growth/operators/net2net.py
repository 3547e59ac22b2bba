"""Net2Net (Chen, Goodfellow & Shlens, 2016) on a transformer with RMSNorm.

Width: new units are copies of old ones, taken in turn. Of a unit with m copies each has the share 1/m.

- MLP units, heads and values: what writes them is copied, what reads them is divided by m.
- Keys: query columns are copied, key columns divided by m, and scaled by sqrt(k^ / k) as ever, because scores
  are divided by sqrt(k^). Under RoPE a copied pair would turn at another frequency, so keys cannot grow.
- The residual stream: plain copies would add to the sum of squares in RMSNorm, unevenly where m differs from
  unit to unit, and epsilon would weigh less. So a copy of unit i is x_i / sqrt(m_i): the sum of squares stays
  what it was for any new size. Embeddings, positions and what else writes the stream are divided by
  sqrt(m_i), and so is all that reads it, a tied embedding too; gains are scaled by sqrt(h / h^) as ever.

Depth: an identity layer adds nothing to the stream: its attention output and MLP down are zero, or with the
norm after the block its gains.

Net2Net draws at random which units are copied, with replacement. Units have no order, so taking them in turn
is such a draw without replacement; it keeps the copies of all units within one of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor

from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.plan import Axis, Piece, TensorPlan, Units, in_turn, of_heads, plan_growth
from nasgrow.operators import Net2Net, copied_heads
from nasgrow.params import index


def recipe(operator: Net2Net, situation: Situation) -> Recipe:
    """Duplicated units with shares, closed layers, and noise on the second copies."""
    s = situation

    def noise(plan: TensorPlan, weights: Tensor, generator: torch.Generator) -> None:
        old = s.parameters[plan.pattern.name].detach()
        size = operator.noise * float(old.double().square().mean().sqrt())
        for copy in plan.copies:
            if copy.again and size and plan.entry.row.start is None:
                part = weights[index(copy.put)]
                drawn = torch.randn(part.shape, generator=generator, dtype=torch.float32, device="cpu")
                part.add_(drawn.to(part), alpha=size)

    plans = plan_growth(s.old, s.new, s.lineage, s.variant, units=duplicates(s))
    return Recipe(plans, s.fill, s.lineage, noise)


def duplicates(situation: Situation) -> Units:
    """Old units in turn, with equal shares."""

    def units(axis: Axis) -> Sequence[Piece]:
        if axis.name == "E":
            return of_heads(head_origins(axis, situation))
        return in_turn(axis, sqrt) if axis.name == "h" else in_turn(axis)

    return units


def head_origins(axis: Axis, situation: Situation) -> tuple[int, ...]:
    """The old head that each head of a layer comes from."""
    assert axis.layer is not None
    assert axis.origin is not None
    s = situation
    return copied_heads(s.old, s.new, axis.layer, axis.origin, equal_keys=s.variant.positions == "rope")
