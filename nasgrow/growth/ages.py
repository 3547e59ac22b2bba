"""Histories of their own for entries younger than their tensor, under Adam.

Adam divides its moments by ``1 - beta ** t``, t being the steps of the whole tensor. An entry of age a < t
should be divided by ``1 - beta ** a``. Keeping its moment multiplied by

    A(a, t) = (1 - beta ** t) / (1 - beta ** a)

makes the division come out right. The optimizer is going to do m <- beta * m + (1 - beta) * g, so before the
step, with the gradient at hand, m is set such that the result is A(a + 1, t + 1) times the moment of the
entry's own history:

    m <- m * A(a + 1, t + 1) / A(a, t) + g * (A(a + 1, t + 1) - 1) * (1 - beta) / beta

and likewise for the second moment with g². No tensor is added: the list of young boxes lives in the
optimizer's state (and so in its ``state_dict``), and a box leaves it when its age no longer matters in
float32.

The hook that does this is registered for all optimizers when this module is imported, because a hook of one
optimizer is lost when that is copied or loaded: a state that lists ages must never be stepped without them.
It does nothing where no ages are listed.
"""

from __future__ import annotations

from typing import Any, TypedDict

from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nasgrow.growth.plan import Box, index

AGES = "ages"
"""The key in the optimizer's state of a parameter."""

_NEGLIGIBLE = 2.0**-24


class Ages(TypedDict):
    """The young boxes of one parameter: its axes' sizes, its step count, and each box with its own."""

    sizes: list[int]
    step: int
    boxes: list[tuple[Box, int]]


def ratio(beta: float, age: int, step: int) -> float:
    """A(a, t): how much larger a moment of age ``age`` must be to suit a tensor of ``step`` steps."""
    return float((1 - beta**step) / (1 - beta**age))


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not isinstance(optimizer, Adam):
        return
    overflow = getattr(optimizer, "found_inf", None)
    if overflow is not None and float(overflow):
        return  # a gradient scaler has found infinities: the optimizer is going to skip this step
    given = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
    for group in optimizer.param_groups:
        beta1, beta2 = (float(beta) for beta in group["betas"])
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if AGES not in state or parameter.grad is None:
                continue
            if given is not None:
                raise ValueError("step(closure) cannot be used while new entries are young; call step()")
            if getattr(optimizer, "grad_scale", None) is not None:
                raise ValueError(
                    "scaled gradients cannot be used while new entries are young; unscale them first"
                )
            ages: Ages = state[AGES]
            gradient = _effective_gradient(parameter, group).view(ages["sizes"])
            moments = {
                name: state[name].view(ages["sizes"])
                for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
                if name in state
            }
            for box, age in ages["boxes"]:
                part = index(box)
                young = {name: moment[part] for name, moment in moments.items()}
                _prepare(young, gradient[part], beta1, beta2, age, ages["step"])
            boxes = [
                (box, age + 1) for box, age in ages["boxes"] if max(beta1, beta2) ** (age + 1) > _NEGLIGIBLE
            ]
            if boxes:
                state[AGES] = Ages(sizes=ages["sizes"], step=ages["step"] + 1, boxes=boxes)
            else:
                del state[AGES]


def _prepare(
    young: dict[str, Tensor], gradient: Tensor, beta1: float, beta2: float, age: int, step: int
) -> None:
    """Set the moments of one box such that the coming step leaves them as their own history would."""
    for name, moment in young.items():
        beta = beta1 if name == "exp_avg" else beta2
        after = ratio(beta, age + 1, step + 1)
        if age:
            moment.mul_(after / ratio(beta, age, step))
        if beta == 0 or name == "max_exp_avg_sq":
            continue
        weight = (after - 1) * (1 - beta) / beta
        if name == "exp_avg":
            moment.add_(gradient, alpha=weight)
        else:
            moment.addcmul_(gradient, gradient, value=weight)


def _effective_gradient(parameter: Tensor, group: dict[str, Any]) -> Tensor:
    """The gradient as Adam is going to use it: its sign under ``maximize``, its L2 term if coupled."""
    assert parameter.grad is not None
    gradient = -parameter.grad if group["maximize"] else parameter.grad
    if group["weight_decay"] and not group["decoupled_weight_decay"]:
        gradient = gradient.add(parameter, alpha=group["weight_decay"])
    return gradient.detach()


register_optimizer_step_pre_hook(_before_step)
