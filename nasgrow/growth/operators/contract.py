"""The contract of operators: what one is given, and what it gives back.

An operator describes, and the engine does. It is given a :class:`Situation` and returns a :class:`Recipe`:
for each tensor of the grown model where its values come from, and functions for values that are not copies.
From that the engine makes weights, gradients and optimizer state, and installs them all or none. So no
operator touches the model, and none needs to know an optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor, nn

from nasgrow.expansions import Lineage
from nasgrow.growth.plan import TensorPlan
from nasgrow.model import Initialiser
from nasgrow.params import Box
from nasgrow.shape import Shape, Variant

Batches = Callable[[int], Tensor]
"""Training batches for operators that learn, by number: tokens (b, s + 1) on the CPU, always the same."""

Parts = Sequence[Tensor]
"""One batch, in the parts that go through the model one after the other."""


def in_parts(batches: Batches, at_once: int | None = None) -> Iterator[Parts]:
    """All batches, one after the other, each in parts of ``at_once`` sequences."""
    for number in count():
        tokens_bs = batches(number)
        yield tokens_bs.split(at_once or len(tokens_bs))


Fill = Callable[[TensorPlan, Box, torch.Generator], Tensor]
"""Gives the values of a free box of a tensor, in the sizes of the box."""

Finish = Callable[[TensorPlan, Tensor, torch.Generator], None]
"""Changes the weights of a tensor in place: given with the table's axes, copies and free values in them."""


@dataclass(frozen=True)
class Situation:
    """What an operator is given.

    Attributes:
        old: The shape before.
        new: The shape after.
        lineage: Which old layer each layer is, by the event's expansions.
        variant: The kind of transformer.
        parameters: The old tensors, by name; not to be changed, nor their gradients.
        init: The values of a fresh model, or what the caller wants in their place.
        generator: A random stream for a name; it depends on the event, the run's seed and the name alone.
        batches: The training batches of the event, where the caller has some. Whoever takes one uses it up:
            two operators that learn in one event do not see the same.
    """

    old: Shape
    new: Shape
    lineage: Lineage
    variant: Variant
    parameters: Mapping[str, nn.Parameter] = field(repr=False)
    init: Initialiser
    generator: Callable[[str], torch.Generator]
    batches: Iterator[Parts] | None

    def fill(self, plan: TensorPlan, box: Box, generator: torch.Generator) -> Tensor:
        """The values of a fresh model in a free box."""
        return self.init(plan.entry, tuple(stop - start for start, stop in box), generator)


@dataclass(frozen=True)
class Recipe:
    """What an operator gives back.

    Attributes:
        plans: Where the values of every tensor of the grown model come from.
        fill: Gives the free values.
        lineage: Which old layer lives on in each layer: keeps its module and its untouched tensors.
        finish: The last word on the weights of tensors that change, if there is one.
        changed: The names of tensors that ``finish`` changes though their plans leave them as they are.
        masked: The boxes of tensors that open behind masks, if there are any.
        opening: The fraction of the budget over which they do.
    """

    plans: Mapping[str, TensorPlan]
    fill: Fill
    lineage: Lineage
    finish: Finish | None = None
    changed: Set[str] = frozenset()
    masked: Mapping[str, Sequence[Box]] = field(default_factory=dict)
    opening: float = 0.0
