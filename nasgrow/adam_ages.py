"""Histories of their own for entries younger than their tensor, under Adam.

Adam divides its moments by ``1 - beta ** t``, t being the steps of the whole tensor. An entry of age a < t
should be divided by ``1 - beta ** a``. Keeping its moment multiplied by

    A(a, t) = (1 - beta ** t) / (1 - beta ** a)

makes the division come out right. The optimizer is going to do m <- beta * m + (1 - beta) * g, so before the
step, with the gradient at hand, m is set such that the result is A(a + 1, t + 1) times the moment of the
entry's own history:

    m <- m * A(a + 1, t + 1) / A(a, t) + g * (A(a + 1, t + 1) - 1) * (1 - beta) / beta

and likewise for the second moment with g². No tensor is added: the list of young boxes lives in the
optimizer's state, and so in its ``state_dict``. A box leaves it when its age no longer matters in float32.

A state that lists ages must never be stepped without this correction, wherever it goes. A hook of one
optimizer would not do: torch drops it when that optimizer is copied, and ``load_state_dict`` gives a state to
an optimizer that never had it. So the state brings the hook along. The list is an object of :class:`Ages`,
and the first one in a process registers the hook; a process cannot load one without this module. (With
``weights_only``, which is its default, ``torch.load`` refuses the class by name, unless
:mod:`nasgrow.model` is imported, which allows it.) The hook sees every optimizer that steps, does nothing to
those whose state lists no ages, and is not there in processes that never had any.
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
"""The key in the optimizer's state of a parameter."""

_NEGLIGIBLE = 2.0**-24


@dataclass(frozen=True)
class Ages:
    """The young boxes of one parameter; where there is one, young entries are stepped as they should be.

    Attributes:
        sizes: The sizes of the parameter's axes.
        step: Its step count.
        boxes: Each young box with its own count.
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
        """Copies and pickles are made by the constructor, which registers the hook."""
        return Ages, (self.sizes, self.step, self.boxes)


@cache
def _hook_optimizers() -> None:
    """Have :func:`_before_step` called from now on; once in a process."""
    register_optimizer_step_pre_hook(_before_step)


def ratio(beta: float, age: int, step: int) -> float:
    """A(a, t): how much larger a moment of age ``age`` must be to suit a tensor of ``step`` steps."""
    return float((1 - beta**step) / (1 - beta**age))


def ages_of(state: Mapping[str, Any]) -> Ages | None:
    """The young boxes that a parameter's state lists, if any.

    Raises:
        UserError: They are plain data, as in states saved before there was a class for them.
    """
    ages = state.get(AGES)
    if ages is None or isinstance(ages, Ages):
        return ages
    raise UserError(
        f"the optimizer state {AGES!r} is a {type(ages).__name__}, not nasgrow.adam_ages.Ages; make it one "
        f"before the state is loaded, by state[{AGES!r}] = Ages(**state[{AGES!r}])"
    )


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not isinstance(optimizer, Adam):
        return
    overflow = getattr(optimizer, "found_inf", None)
    if overflow is not None and float(overflow):
        return  # a gradient scaler has found infinities: the optimizer is going to skip this step
    young = [
        (parameter, group, state, ages)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and (ages := ages_of(state := optimizer.state.get(parameter, {})))
    ]
    if not young:
        return
    if (args[1] if len(args) > 1 else kwargs.get("closure")) is not None:  # args[0] is the optimizer
        raise UserError("step(closure) cannot be used while new entries are young; call step()")
    if getattr(optimizer, "grad_scale", None) is not None:
        raise UserError("scaled gradients cannot be used while new entries are young; unscale them first")
    # Boxes that are contiguous memory apart from others: a GPU takes one kernel for all of them.
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
    """Set the moments of boxes of one age such that the coming step leaves them as their own history would.

    One call for all boxes: a growing model has hundreds, and each would cost more to launch than to compute.
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
    """The gradient as Adam is going to use it: its sign under ``maximize``, its L2 term if coupled."""
    assert parameter.grad is not None
    gradient = -parameter.grad if group["maximize"] else parameter.grad
    if group["weight_decay"] and not group["decoupled_weight_decay"]:
        gradient = gradient.add(parameter, alpha=group["weight_decay"])
    return gradient.detach()
