"""Masks that fade in new parts of a model during training.

A mask covers a box of a tensor. The parameter holds the raw values, and the forward pass uses them
times m. The factor m rises linearly from 0 at the event to 1, as a function of the fraction of the
budget spent. So masks need no state: training, evaluation and a resumed run compute the same m. The
gradient of a raw value is m times the gradient of the value that the forward pass uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from nasgrow.growth.plan import TensorPlan
from nasgrow.model import Transformer
from nasgrow.params import Box, index, table


class Mask(NamedTuple):
    """A mask on a box of a tensor; entries that warm up are described in the same way.

    Attributes:
        name: The name of the tensor.
        box: The masked part of the tensor.
        begun: The fraction of the budget at which the mask begins to open.
        opening: The fraction of the budget over which it opens.
    """

    name: str
    box: Box
    begun: float
    opening: float

    def at(self, spent: float) -> float:
        """Return m after the fraction ``spent`` of the budget."""
        return min(1.0, max(0.0, (spent - self.begun) / self.opening))


def still_closed(masks: Iterable[Mask], spent: float) -> list[Mask]:
    """Return the masks that are not fully open after the fraction ``spent`` of the budget."""
    return [mask for mask in masks if mask.at(spent) < 1]


def moved(masks: Iterable[Mask], plans: Iterable[TensorPlan], *, copies: bool = True) -> list[Mask]:
    """Return the masks of a model after it has grown by these plans.

    Args:
        masks: The masks of the old model.
        plans: How the tensors of the grown model are filled.
        copies: Whether further copies of masked values are masked too.
    """
    by_name: dict[str, list[Mask]] = {}
    for mask in masks:
        by_name.setdefault(mask.name, []).append(mask)
    return [
        mask._replace(name=plan.entry.name, box=box)
        for plan in plans
        for copy in plan.copies
        if copies or not copy.again
        for mask in by_name.get(copy.source.name, ())
        if (box := copy.moved(mask.box)) is not None
    ]


def _behind(model: Transformer, masks: Sequence[Mask], spent: float) -> list[tuple[Tensor, Mask, float]]:
    """Return each mask that is not fully open, with the parameter's part that it covers and its m."""
    parameters = dict(model.named_parameters())
    entries = table(model.shape, model.variant)
    return [
        (parameters[mask.name].detach().view(entries[mask.name].sizes)[index(mask.box)], mask, mask.at(spent))
        for mask in still_closed(masks, spent)
    ]


@contextmanager
def masked(
    model: Transformer, masks: Sequence[Mask], spent: float, *, gradients: bool = False
) -> Iterator[None]:
    """Multiply masked parameters by m within the context; on exit restore the raw values bit by bit.

    Args:
        model: The model.
        masks: The masks of the model. If all are fully open, this does nothing.
        spent: The fraction of the budget spent.
        gradients: Whether the caller computes gradients within the context, starting from none. If
            so, they are converted into gradients of the raw values on exit; every parameter whose
            mask is not fully open must have one.
    """
    parts = _behind(model, masks, spent) if masks else []
    raw = [part.clone() for part, _, _ in parts]
    try:
        for part, _, m in parts:
            part.mul_(m)
        yield
    finally:
        for (part, _, _), values in zip(parts, raw, strict=True):
            part.copy_(values)
    if gradients:
        entries = table(model.shape, model.variant) if parts else {}
        for _, mask, m in parts:
            gradient = model.get_parameter(mask.name).grad
            assert gradient is not None
            gradient.view(entries[mask.name].sizes)[index(mask.box)].mul_(m)


@contextmanager
def warming_up(model: Transformer, warming: Sequence[Mask], spent: float, least: float) -> Iterator[None]:
    """Scale down the updates of entries that warm up; the caller steps the optimizers within the context.

    This equals a lower learning rate for these entries: the updates of AdamW and Muon, including their
    decoupled weight decay, are proportional to the learning rate.

    Args:
        model: The model.
        warming: The entries that warm up. The factor on their updates rises from ``least`` to 1 as m
            rises from 0 to 1.
        spent: The fraction of the budget spent.
        least: The factor at the beginning of the warm-up.
    """
    parts = _behind(model, warming, spent) if warming else []
    before = [part.clone() for part, _, _ in parts]
    yield
    for (part, _, m), values in zip(parts, before, strict=True):
        part.lerp_(values, (1 - least) * (1 - m))


def settle(model: Transformer, masks: Sequence[Mask], spent: float) -> None:
    """Multiply masked parameters by m in place, for a model that is not trained any further."""
    with torch.no_grad():
        for part, _, m in _behind(model, masks, spent):
            part.mul_(m)
