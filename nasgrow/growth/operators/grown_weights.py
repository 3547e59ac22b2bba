"""Compute the weights of a recipe, for the engine and for operators that evaluate the grown model first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from nasgrow.errors import UserError
from nasgrow.growth.operators.contract import Parts, Recipe, Situation
from nasgrow.growth.plan import TensorPlan
from nasgrow.growth.tensors import grow_tensor
from nasgrow.model import Transformer, model_with
from nasgrow.params import Box


def weights_of(plan: TensorPlan, sources: Mapping[str, Tensor], recipe: Recipe, s: Situation) -> Tensor:
    """Return the weights of one tensor of the grown model; every call returns the same values.

    It copies old values and fills the free boxes. Then it calls the recipe's ``finish``, if any.

    Args:
        plan: The tensor's plan.
        sources: The old tensors that it copies, by name.
        recipe: The recipe of the operator.
        s: The input of the operator.

    Raises:
        UserError: The recipe's ``fill`` returns something else than a tensor of the box's sizes.
    """
    generator = s.generator(plan.entry.name)

    def fill(box: Box) -> Tensor:
        sizes = tuple(stop - start for start, stop in box)
        values = recipe.fill(plan, box, generator)
        if not isinstance(values, Tensor) or tuple(values.shape) != sizes:
            what = f"a tensor of {tuple(values.shape)}" if isinstance(values, Tensor) else repr(values)
            raise UserError(f"init must give a tensor of {sizes} for {plan.entry.name}, not {what}")
        return values

    values = grow_tensor(plan, sources, power=-1, like=s.parameters[plan.pattern.name], fill=fill)
    if recipe.finish is not None:
        recipe.finish(plan, values.view(plan.entry.sizes), generator)
    return values


def draft(recipe: Recipe, situation: Situation) -> Transformer:
    """Return the grown model of a recipe as a separate model, which shares no memory with the old one."""
    tensors = {
        name: weights_of(plan, situation.parameters, recipe, situation) for name, plan in recipe.plans.items()
    }
    return model_with(situation.new, situation.variant, tensors)


def batches_for(kind: str, situation: Situation) -> Iterator[Parts]:
    """Return the training batches for the operator ``kind``, which needs them.

    Raises:
        UserError: The caller gave none.
    """
    if situation.batches is None:
        raise UserError(f"operator {kind} learns from batches, and none were given")
    return situation.batches


def learn_from(parts: Parts, logits_of: Callable[[Tensor], Tensor], device: torch.device) -> None:
    """Accumulate the gradients of the mean loss over a batch, in the tensors behind ``logits_of``.

    The parts of the batch run one after the other, so the memory is that of one part.

    Args:
        parts: The batch.
        logits_of: Called with tokens (b, s); returns logits (b, s, V).
        device: The device of the model.
    """
    sequences = sum(map(len, parts))
    for part_bs in parts:
        tokens_bs = part_bs.to(device)
        logits_tv = logits_of(tokens_bs[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits_tv, tokens_bs[:, 1:].flatten())
        (loss * (len(part_bs) / sequences)).backward()
