"""LEMON (Wang et al., 2023) on a transformer with RMSNorm: lossless for any size, and copies differ.

Of a unit with m copies, the r-th has the share a_r = 2 (m - r) / (m (m + 1)), r = 0 ... m - 1: two thirds
and one third of two. What leaves a unit is split unevenly, so gradients tell its copies apart from the first
step on, without noise. The paper asks for shares that differ, and leaves open which.

- MLP units, values, heads, keys: copied in turn until the size is reached, as with Net2Net; only shares
  differ.
- The residual stream: c whole copies, as many as fit, and zeros in the rest, as the paper has it without a
  mean to keep; the rest is new, as with ``preserve``. (Under LayerNorm it holds averages.) Copies are equal,
  and what reads them is split. The paper copies x as it is and adapts epsilon; here a copy is x / sqrt(c),
  which is the same up to scale and leaves the sum of squares as it was, and what reads it is a sqrt(c) W.
  Copies x sqrt(a), read by sqrt(a) W, would be exact too, but writers, readers and their gradients would
  then stay multiples sqrt(a) of each other under SGD: nothing would part them.

A tied embedding writes and reads: its copies are all E / sqrt(c), which is exact too.

Gradients and moments that are carried over are those of the grown model, except where the stream is written
or a tied embedding reads it: there derivatives reach equal copies alike, not by their shares.

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
    """Duplicated units with unequal shares, and closed layers."""
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
