"""Correct Adam's bias correction for new entries, which have taken fewer steps than their tensor.

Adam divides its moments by ``1 - beta ** t``, where t is the step count of the whole tensor. An entry that
an event added is younger: it has taken a < t steps (its age), and its moments should be divided by
``1 - beta ** a``. The division is right if the state holds the entry's moment multiplied by

    A(a, t) = (1 - beta ** t) / (1 - beta ** a).

The optimizer's step does m <- beta * m + (1 - beta) * g. So before the step, when the gradient is known, this
module sets m such that the result is A(a + 1, t + 1) times the moment of an entry with that age:

    m <- m * A(a + 1, t + 1) / A(a, t) + g * (A(a + 1, t + 1) - 1) * (1 - beta) / beta

and likewise for the second moment with g². No tensor is added. The list of young boxes is part of the
optimizer's state, and so of its ``state_dict``. A box leaves the list when its age no longer matters in
float32.

No optimizer may step a state that lists ages without this correction. A hook on one optimizer is not enough:
torch drops it when the optimizer is copied, and ``load_state_dict`` may pass the state to an optimizer that
never had the hook. So the state brings the hook along. The list is an object of :class:`Ages`, and the first
one in a process registers a hook for all optimizers. A process cannot load the object without this module.
(With ``weights_only``, its default, ``torch.load`` refuses the class by name, unless :mod:`nasgrow.model` is
imported, which allows it.) The hook ignores optimizers whose state lists no ages, and processes without ages
never register it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nasgrow.errors import UserError
from nasgrow.params import Box, index

AGES = "ages"
"""The key of :class:`Ages` in the optimizer state of a parameter."""

_NEGLIGIBLE = 2.0**-24
"""A box leaves the list when ``beta ** age`` is at most this: it vanishes beside 1 in float32."""


@dataclass(frozen=True)
class Ages:
    """The young boxes of one parameter. Creating one registers the hook that corrects their steps.

    Attributes:
        sizes: The sizes of the parameter's axes in the parameter table.
        step: The step count of the parameter.
        boxes: Each young box with its age in steps.
    """

    sizes: tuple[int, ...]
    step: int
    boxes: tuple[tuple[Box, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))
        boxes = tuple((tuple((start, stop) for start, stop in box), age) for box, age in self.boxes)
        object.__setattr__(self, "boxes", boxes)  # JSON has lists for tuples
        _hook_optimizers()

    def __reduce__(self) -> tuple[type[Ages], tuple[object, ...]]:
        """Copy and unpickle through the constructor, which registers the hook."""
        return Ages, (self.sizes, self.step, self.boxes)


@cache
def _hook_optimizers() -> None:
    """Register :func:`_before_step` as a hook of all optimizers, once in a process."""
    register_optimizer_step_pre_hook(_before_step)


def ratio(beta: float, age: int, step: int) -> float:
    """Return A(a, t) for an entry of age ``age``, at least 1, in a tensor of ``step`` steps."""
    return float((1 - beta**step) / (1 - beta**age))


def ages_of(state: Mapping[str, Any]) -> Ages | None:
    """Return the young boxes that a parameter's optimizer state lists; None if it lists none.

    Raises:
        UserError: The list is plain data, as in states saved before :class:`Ages` existed.
    """
    ages = state.get(AGES)
    if ages is None or isinstance(ages, Ages):
        return ages
    raise UserError(
        f"the optimizer state {AGES!r} is a {type(ages).__name__}, not nasgrow.adam_ages.Ages; make it one "
        f"before the state is loaded, by state[{AGES!r}] = Ages(**state[{AGES!r}])"
    )


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Prepare the moments of young entries for an Adam optimizer's next step, and raise their ages.

    Parameters without a gradient are left as they are, because the step skips them.

    Raises:
        UserError: Some entries are young, and the step has a closure or gradients that are scaled.
    """
    if not isinstance(optimizer, Adam):
        return
    overflow = getattr(optimizer, "found_inf", None)
    if overflow is not None and float(overflow):
        return  # a gradient scaler has found infinities: the optimizer will skip this step
    young = [
        (parameter, group, state, ages)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and (ages := ages_of(state := optimizer.state.get(parameter, {})))
    ]
    if not young:
        return
    if (args[1] if len(args) > 1 else kwargs.get("closure")) is not None:  # args[0] is the optimizer
        raise UserError(
            "step(closure) cannot be used while entries added by growth have fewer steps than their tensor; "
            "call step()"
        )
    if getattr(optimizer, "grad_scale", None) is not None:
        raise UserError(
            "scaled gradients cannot be used while entries added by growth have fewer steps than their "
            "tensor; unscale them first"
        )
    # Group contiguous boxes apart from others: a GPU needs one kernel for all contiguous ones.
    boxes_of: dict[tuple[str, float, int, int, bool], tuple[list[Tensor], list[Tensor]]] = {}
    for parameter, group, state, ages in young:
        beta1, beta2 = (float(beta) for beta in group["betas"])
        gradient = _effective_gradient(parameter, group).view(ages.sizes)
        moments = {
            name: state[name].view(ages.sizes)
            for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
            if name in state
        }
        for box, age in ages.boxes:
            part = index(box)
            for name, moment in moments.items():
                entry = moment[part]
                beta = beta1 if name == "exp_avg" else beta2
                kind = name, beta, age, ages.step, entry.is_contiguous()
                entries, gradients = boxes_of.setdefault(kind, ([], []))
                entries.append(entry)
                gradients.append(gradient[part])
        boxes = tuple(
            (box, age + 1) for box, age in ages.boxes if max(beta1, beta2) ** (age + 1) > _NEGLIGIBLE
        )
        if boxes:
            state[AGES] = Ages(ages.sizes, ages.step + 1, boxes)
        else:
            del state[AGES]
    for (name, beta, age, step, _), (entries, gradients) in boxes_of.items():
        _prepare(name, entries, gradients, beta, age, step)


def _prepare(
    name: str, entries: list[Tensor], gradients: list[Tensor], beta: float, age: int, step: int
) -> None:
    """Adjust the moments of boxes of one age, so that the optimizer's next step corrects for that age.

    One call handles all boxes: a growing model has hundreds, and a kernel launch costs more than the
    arithmetic of one box.

    Args:
        name: The name of the moment in the optimizer's state.
        entries: The parts of that moment in the boxes; they are changed in place.
        gradients: The gradients in the boxes.
        beta: The decay rate of the moment.
        age: The steps that the boxes have taken.
        step: The steps that the tensor has taken.
    """
    after = ratio(beta, age + 1, step + 1)
    if age:
        torch._foreach_mul_(entries, after / ratio(beta, age, step))
    if beta == 0 or name == "max_exp_avg_sq":
        return
    weight = (after - 1) * (1 - beta) / beta
    if name == "exp_avg":
        torch._foreach_add_(entries, gradients, alpha=weight)
    else:
        torch._foreach_addcmul_(entries, gradients, gradients, value=weight)


def _effective_gradient(parameter: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the gradient that Adam will use: negated under ``maximize``, with the L2 term if coupled."""
    assert parameter.grad is not None
    gradient = -parameter.grad if group["maximize"] else parameter.grad
    if group["weight_decay"] and not group["decoupled_weight_decay"]:
        gradient = gradient.add(parameter, alpha=group["weight_decay"])
    return gradient.detach()
