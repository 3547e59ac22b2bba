"""The operator ``net2net`` (Chen, Goodfellow & Shlens, 2016) on a transformer with RMSNorm.

Width: new units are copies of old ones, taken in turn. If a unit has m copies, each has the share 1/m.

- MLP units, heads and values: tensors that write them are copied, tensors that read them divided by m.
- Keys: query columns are copied and key columns divided by m. As in every key growth, key columns are also
  scaled by sqrt(k^ / k), because scores are divided by sqrt(k^). Under RoPE a copied pair would turn at
  another frequency, so keys cannot grow.
- The residual stream: plain copies would enlarge the sum of squares in RMSNorm, unevenly if m differs from
  unit to unit, and epsilon would have less weight. So a copy of unit i is x_i / sqrt(m_i), which leaves the
  sum of squares the same for any new size. All tensors that write the stream (embeddings, positions,
  attention and MLP outputs) are divided by sqrt(m_i), and so are all that read it, also a tied embedding.
  Gains are scaled by sqrt(h / h^), as in every growth of the hidden size.

Depth: an identity layer adds nothing to the stream. Its attention output and MLP down projections are zero,
or its gains with the norm after the block.

Net2Net draws the units to copy at random with replacement. Units have no order, so taking them in turn
amounts to a draw without replacement. The numbers of copies of any two units then differ by at most one.
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
    """Return a recipe that duplicates units with equal shares and inserts identity layers.

    It adds noise to every copy except the old unit in its old place, so that copies can diverge.
    ``operator.noise`` sets its size; 0 means none. Tensors that start constant get no noise.
    """
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
    """Return the rule that fills new units with copies of old ones in turn; all copies have equal shares.

    A new head copies an old head that fits into its sizes.
    """

    def units(axis: Axis) -> Sequence[Piece]:
        if axis.name == "E":
            return of_heads(head_origins(axis, situation))
        return in_turn(axis, sqrt) if axis.name == "h" else in_turn(axis)

    return units


def head_origins(axis: Axis, situation: Situation) -> tuple[int, ...]:
    """Return the old head that each head of a grown layer copies; ``axis`` is that of the heads.

    The layer must continue an old one. Old heads copy themselves. A new head copies the old head
    that fits into its sizes and has the fewest copies.

    Raises:
        UserError: No old head fits some new head.
    """
    assert axis.layer is not None
    assert axis.origin is not None
    s = situation
    return copied_heads(s.old, s.new, axis.layer, axis.origin, equal_keys=s.variant.positions == "rope")
