"""Plan a model that holds n full copies of the old one side by side, with block-diagonal matrices.

Copy j of the model occupies block j of every axis that grows n-fold. A matrix between two such axes is W on
the diagonal and zero off it, so the copies do not interact. Each copy has x / sqrt(n) in its block of the
residual stream, so the sum of squares in RMSNorm, which the copies share, is the old one. Tensors that read
the stream are sqrt(n) W. The output averages the equal logits of all copies, which gives the old logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt

from nasgrow.growth.operators.contract import Situation
from nasgrow.growth.plan import Axis, Copy, Piece, TensorPlan, plan_growth
from nasgrow.shape import Shape


def side_by_side(situation: Situation) -> dict[str, TensorPlan]:
    """Return plans for a model tiled n times, in which every output reads all copies of its inputs."""
    s = situation
    times = s.new.hidden // s.old.hidden

    def units(axis: Axis) -> Sequence[Piece]:
        write = 1 / sqrt(times) if axis.name == "h" else 1.0
        return [Piece(0, axis.old, number * axis.old, 1 / times, write) for number in range(times)]

    return plan_growth(s.old, s.new, s.lineage, s.variant, units=units)


def diagonal(tiles: Mapping[str, TensorPlan], situation: Situation) -> dict[str, TensorPlan]:
    """Return the plans of :func:`side_by_side` with zero blocks off the diagonal."""
    times = situation.new.hidden // situation.old.hidden
    return {name: _diagonal(plan, times, situation.old) for name, plan in tiles.items()}


def _diagonal(plan: TensorPlan, times: int, old: Shape) -> TensorPlan:
    """Return the plan with zero blocks off the diagonal, if both dimensions of the tensor grow.

    An output that read n copies of its input with the share 1/n each now reads one copy with share 1.
    """
    kept, zeros = [], []
    for copy in plan.copies:
        numbers = _numbers(plan, copy, old)
        if len(set(numbers)) > 1:
            zeros.append(copy.put)
        elif len(numbers) > 1:
            kept.append(replace(copy, factor=copy.factor * times, share=copy.share * times))
        else:
            kept.append(copy)
    return replace(plan, copies=tuple(kept), zeros=(*plan.zeros, *zeros))


def _numbers(plan: TensorPlan, copy: Copy, old: Shape) -> list[int]:
    """Return the number of the model copy that a box belongs to, for each axis that grows n-fold."""
    source, entry = copy.source, plan.entry
    found = []
    for axis, name in enumerate(entry.axes):
        start = copy.put[axis][0]
        if name == "E":
            assert source.heads is not None
            assert entry.heads is not None
            assert source.layer is not None
            moved = entry.heads.start + start - source.heads.start - copy.take[axis][0]
            found.append(moved // old.layers[source.layer].head_count)
        elif entry.sizes[axis] > source.sizes[axis]:
            found.append(start // source.sizes[axis])
    return found
