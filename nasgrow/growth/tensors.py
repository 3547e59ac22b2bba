"""Build a grown tensor from old ones by its plan: weights, gradients or optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nasgrow.growth.plan import TensorPlan
from nasgrow.params import Box, index


def grow_tensor(
    plan: TensorPlan,
    sources: Mapping[str, Tensor],
    *,
    power: int,
    like: Tensor,
    fill: Callable[[Box], Tensor] | None = None,
) -> Tensor:
    """Return the grown tensor, built from the old tensors that it takes values from.

    Args:
        plan: Where each value comes from.
        sources: The old tensors by name. The values of a missing one count as zero.
        power: The power of the gradient that the values are measured in: -1 for weights, 1 for
            gradients and first moments, 2 for second moments. See
            :meth:`nasgrow.growth.plan.Copy.scale`.
        like: A tensor with the dtype and device of the result.
        fill: Called with each free box; returns its values. Without it they are zero.
    """
    grown = torch.zeros(plan.entry.stored, dtype=like.dtype, device=like.device)
    view = grown.view(plan.entry.sizes)
    for copy in plan.copies:
        source = sources.get(copy.source.name)
        if source is not None:
            part = view[index(copy.put)]
            part.copy_(source.detach().reshape(copy.source.sizes)[index(copy.take)])
            if (scale := copy.scale(power)) != 1.0:
                part.mul_(scale)
    if fill is not None:
        for box in plan.free:
            view[index(box)].copy_(fill(box))
    return grown
