"""The operator ``preserve``: zero slices, rescaled old values, free parts (Gesmundo & Maile, 2023).

The paper remarks that zero slices are not the only way to preserve the function. This module has two
others. Both are exact, and give every new unit non-zero incoming and outgoing weights from the start.

``paired``: new units are made in pairs (a, b). Their incoming weights u are equal and their outgoing
weights w opposite, so their contributions cancel: f(x u) w - f(x u) w = 0. The gradients of u in a and b
are opposite and those of w are equal, so the units of a pair differ after the first step, under Adam too.

- It works for MLP units, for value units within a head (old, new, or of a new layer), and for key units,
  where query columns are equal and key columns opposite.
- It does not work for the hidden size, where new units would add to the norm, nor for keys under RoPE,
  where the units of two pairs turn at different frequencies. These keep zero slices, and so does the
  last unit of an odd number.
- A new layer needs no zeros, except with the norm after the block: there the norm would divide a sum that
  is zero up to rounding by the size of that sum.

``split``: a new unit is a copy of an old one, and the outgoing weights are divided among the two,
w = s w + (1 - s) w, with 2/3 for the old unit and 1/3 for its copy (m copies: proportional to m, ..., 1).
On the hidden size, both the tensors that write a unit and those that read it have the factor sqrt(s), as
in net2net.

- The gradients of copies differ by the ratio of their shares. Adam ignores such a factor, and at first
  moves the incoming weights of copies alike. But it moves their outgoing weights by the same step from
  different values, and after that the gradients of copies are no longer parallel.
- (Under plain SGD copies of hidden units stay parallel except for the gains of norms, and diverge slowly.)
- Keys under RoPE and layers have zero slices. So have all new heads of a layer if one of them is
  too small for every old head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

import torch
from torch import Tensor

from nasgrow.errors import UserError
from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.operators.net2net import head_origins
from nasgrow.growth.plan import Axis, Piece, TensorPlan, in_turn, kept, of_heads, plan_growth, uneven, without
from nasgrow.operators import Preserve
from nasgrow.params import Box, index


def recipe(operator: Preserve, situation: Situation) -> Recipe:
    """Return the recipe of the parameter table, with the options of the operator.

    ``init`` chooses free values. ``new`` chooses how new units preserve the function: with zero
    slices, in pairs that cancel, or as copies of old units.
    """
    s = situation

    def matched(plan: TensorPlan, box: Box, generator: torch.Generator) -> Tensor:
        values = s.fill(plan, box, generator)
        old = s.parameters[plan.pattern.name].detach()
        if plan.entry.row.start is not None or not old.any():
            return values  # a constant, or a tensor that has not been trained
        return values * float(old.double().square().mean().sqrt() * sqrt(plan.entry.fan_in))

    fill = s.fill if operator.init == "fresh" else matched

    def units(axis: Axis) -> Sequence[Piece]:
        if axis.name == "E":
            try:
                return of_heads(head_origins(axis, s), uneven)
            except UserError:
                return kept(axis)
        if axis.name == "k" and s.variant.positions == "rope":
            return kept(axis)
        return in_turn(axis, sqrt if axis.name == "h" else lambda share: 1.0, uneven)

    def pair(plan: TensorPlan, weights: Tensor, generator: torch.Generator) -> None:
        entry = plan.entry
        in_new_layer = entry.layer is not None and s.lineage[entry.layer] is None
        if in_new_layer and s.variant.norm == "after":
            return
        for name in {"p", "v", "k"} & set(entry.axes):
            if name == "k" and s.variant.positions == "rope":
                continue
            axis, reads = entry.axes.index(name), name in entry.row.reads
            for box in _new_units(plan, axis):
                first, second = _halves(box, axis)
                if reads:
                    weights[index(first)] = fill(plan, first, generator).to(weights)
                weights[index(second)] = weights[index(first)] * (-1 if reads else 1)

    plans = plan_growth(s.old, s.new, s.lineage, s.variant, units=units if operator.new == "split" else kept)
    return Recipe(plans, fill, s.lineage, pair if operator.new == "paired" else None)


def _new_units(plan: TensorPlan, axis: int) -> Iterator[Box]:
    """Yield the boxes of a tensor whose units along ``axis`` are new; units of other axes may be old.

    Key units of new heads are left out. They are free, because the head's values already cancel.
    """
    entry = plan.entry
    whole: Box = tuple((0, size) for size in entry.sizes)
    old = []
    for copy in plan.copies:
        region = list(whole)
        region[axis] = copy.put[axis]
        if entry.heads is not None:
            by_head = entry.axes.index("E")
            region[by_head] = copy.put[by_head]
        old.append(tuple(region))
        if entry.axes[axis] == "k" and region[axis][1] < whole[axis][1]:
            yield (*region[:axis], (region[axis][1], whole[axis][1]), *region[axis + 1 :])
    if entry.axes[axis] != "k":
        yield from without(whole, old)


def _halves(box: Box, axis: int) -> tuple[Box, Box]:
    """Return the first and the second halves of a box along an axis: the two units of each pair.

    If the number of units is odd, the last is in neither half.
    """
    start, stop = box[axis]
    many = (stop - start) // 2
    first, second = ((start, start + many), (start + many, start + 2 * many))
    return (*box[:axis], first, *box[axis + 1 :]), (*box[:axis], second, *box[axis + 1 :])
