"""The interface of operators: their input, :class:`Situation`, and their result, :class:`Recipe`.

A recipe says for each tensor of the grown model where its values come from, and has functions for
values that are not copies. The engine computes weights, gradients and optimizer state from the recipe
and installs all of them or none. So an operator never changes the model, and needs no knowledge of
optimizers.
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
"""Called with the number of a batch; returns its tokens (b, s + 1) on the CPU, the same in every call.

Operators that learn train on these batches.
"""

Parts = Sequence[Tensor]
"""One batch, split into parts that go through the model one after the other."""


def in_parts(batches: Batches, at_once: int | None = None) -> Iterator[Parts]:
    """Yield all batches in order, without end, each in parts of at most ``at_once`` sequences.

    By default a batch is one part.
    """
    for number in count():
        tokens_bs = batches(number)
        yield tokens_bs.split(at_once or len(tokens_bs))


Fill = Callable[[TensorPlan, Box, torch.Generator], Tensor]
"""Called with a tensor's plan, one of its free boxes and a random generator; returns the box's values."""

Finish = Callable[[TensorPlan, Tensor, torch.Generator], None]
"""Called with a tensor's plan, its filled weights and a random generator; changes the weights in place.

The weights are a view with the axes of the parameter table.
"""


@dataclass(frozen=True)
class Situation:
    """The input of an operator at an event.

    Attributes:
        old: The shape before.
        new: The shape after.
        lineage: For each layer, the old layer that it continues by the event's expansions, or None.
        variant: The kind of transformer.
        parameters: The old parameters, by name. Operators must not change them or their gradients.
        init: Called for the values of a free box; by default it draws those of a fresh model.
        generator: Called with a name; returns a random generator that depends on the event, the run's
            seed and the name alone.
        batches: The training batches of the event, or None if the caller has none. Two operators that
            learn in one event share the iterator, so they get different batches.
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
        """Return the values of a fresh model for a free box."""
        return self.init(plan.entry, tuple(stop - start for start, stop in box), generator)


@dataclass(frozen=True)
class Recipe:
    """The result of an operator.

    Attributes:
        plans: Where the values of every tensor of the grown model come from, by name.
        fill: Called for the values of each free box.
        lineage: For each layer, the old layer that it continues, or None. A layer that continues an old
            one keeps its module and its unchanged tensors.
        finish: Called last with the weights of each tensor that changes; optional.
        changed: The names of tensors that ``finish`` changes although their plans do not.
        masked: The boxes of tensors that are masked after the event.
        opening: The fraction of the budget over which the masks open. The engine limits it to half
            of the unspent budget.
    """

    plans: Mapping[str, TensorPlan]
    fill: Fill
    lineage: Lineage
    finish: Finish | None = None
    changed: Set[str] = frozenset()
    masked: Mapping[str, Sequence[Box]] = field(default_factory=dict)
    opening: float = 0.0
