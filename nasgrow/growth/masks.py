"""Masks that open while a model trains: new parts that come in little by little.

What stands behind a mask is a box of a tensor. The parameters hold its raw values; every forward pass sees
them times m, which rises from 0 at the event to 1, linearly in the fraction of the budget spent. So m needs
no state of its own: it is the same for training, evaluation and a run that is taken up again. Gradients of
raw values are m times those of what the forward pass sees.
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
    """A box of a tensor behind a mask.

    Attributes:
        name: The tensor's.
        box: The part of it.
        begun: The fraction of the budget at which the mask begins to open.
        opening: The fraction of the budget that it takes.
    """

    name: str
    box: Box
    begun: float
    opening: float

    def at(self, spent: float) -> float:
        """m, where the fraction ``spent`` of the budget is."""
        return min(1.0, max(0.0, (spent - self.begun) / self.opening))


def still_closed(masks: Iterable[Mask], spent: float) -> list[Mask]:
    """The masks that are not open yet."""
    return [mask for mask in masks if mask.at(spent) < 1]


def moved(masks: Iterable[Mask], plans: Iterable[TensorPlan], *, copies: bool = True) -> list[Mask]:
    """Where the masks of a model are after it has grown by these plans; copies are masked as well, or not."""
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
    """The parts of a model's parameters that stand behind masks, with their m."""
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
    """See the model through its masks; afterwards its parameters are the raw values again, to the bit.

    Args:
        model: The model.
        masks: Its masks; without any that is closed this does nothing and costs nothing.
        spent: The fraction of the budget spent.
        gradients: Whether gradients are computed here: then they become those of the raw values.
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
    """Have the optimizers' step, which is taken here, move entries that warm up by a share of its updates.

    Updates of AdamW and Muon, with their decoupled weight decay, are proportional to the learning rate. So
    the share of an update is the update at that share of the learning rate.

    Args:
        model: The model.
        warming: The entries that warm up; the share rises from ``least`` to 1 as m rises from 0.
        spent: The fraction of the budget spent.
        least: The share that the warm-up begins with.
    """
    parts = _behind(model, warming, spent) if warming else []
    before = [part.clone() for part, _, _ in parts]
    yield
    for (part, _, m), values in zip(parts, before, strict=True):
        part.lerp_(values, (1 - least) * (1 - m))


def settle(model: Transformer, masks: Sequence[Mask], spent: float) -> None:
    """Give the parameters the values that the forward pass sees, for a model that is not trained on."""
    with torch.no_grad():
        for part, _, m in _behind(model, masks, spent):
            part.mul_(m)
