"""What an operator really spends, as torch counts it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nasgrow.expansions import Expansion, expand
from nasgrow.growth.operators import RECIPES
from nasgrow.growth.operators.contract import Batches, Situation, in_parts
from nasgrow.model import Transformer, fresh, generator_for
from nasgrow.operators import Operator


def counted_flops(
    operator: Operator,
    model: Transformer,
    event: Sequence[Expansion],
    batches: Batches,
    at_once: int | None = None,
) -> int:
    """The FLOPs that an operator spends on an event, with so many sequences at once."""
    new, lineage = expand(model.shape, event)
    parameters = dict(model.named_parameters())
    situation = Situation(
        model.shape,
        new,
        lineage,
        model.variant,
        parameters,
        fresh,
        lambda n: generator_for(0, n),
        in_parts(batches, at_once),
    )
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        RECIPES[operator.kind](operator, situation)
    return int(counter.get_total_flops())
