"""The operator ``lemon`` (LEMON, Wang et al., 2023) with RMSNorm: copies of units with unequal shares.

It preserves the function for any size. If a unit has m copies, copy r = 0 ... m - 1 has the share
a_r = 2 (m - r) / (m (m + 1)): two thirds and one third for two copies. The outgoing weights of a unit are
split unevenly, so the gradients of its copies differ from the first step on, without noise. The paper asks
for unequal shares and does not fix them.

- MLP units, values, heads, keys: copied in turn until the size is reached, as with Net2Net; only the shares
  are others.
- The residual stream: c full copies, as many as fit. The rest is zero and new, as with ``preserve``. This is
  the paper's rule for norms that subtract no mean. (Under LayerNorm the rest holds averages.) Copies are
  equal, and tensors that read them are split. The paper copies x unscaled and adapts epsilon. Here a copy is
  x / sqrt(c), which is equal up to scale and leaves the sum of squares the same; the tensor that reads it is
  a sqrt(c) W. Copies x sqrt(a), read by sqrt(a) W, would be exact too. But under SGD writers, readers and
  their gradients would then stay multiples sqrt(a) of each other, and copies would never diverge.

A tied embedding both writes and reads the stream: its copies are all E / sqrt(c), which is exact too.

Gradients and moments that are carried over equal those of the grown model, with two exceptions: tensors that
write the stream, and a tied embedding that reads it. There the derivatives of the grown model do not follow
the shares, because a norm and a tied embedding pass equal terms to equal copies.

Depth: layers that add nothing, as with ``preserve``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.operators.net2net import head_origins
from nasgrow.growth.plan import Axis, Piece, in_turn, of_heads, plan_growth, uneven
from nasgrow.operators import Lemon


def recipe(operator: Lemon, situation: Situation) -> Recipe:
    """Return a recipe of duplicated units with unequal shares, and new layers that add nothing."""
    s = situation

    def units(axis: Axis) -> Sequence[Piece]:
        if axis.name == "h":
            copies = axis.new // axis.old
            return [
                Piece(0, axis.old, number * axis.old, uneven(number, copies), 1 / sqrt(copies))
                for number in range(copies)
            ]
        if axis.name == "E":
            return of_heads(head_origins(axis, s), uneven)
        return in_turn(axis, share=uneven)

    return Recipe(plan_growth(s.old, s.new, s.lineage, s.variant, units=units), s.fill, s.lineage)
