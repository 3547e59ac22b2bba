"""Grow the optimizer state of a tensor, and choose the history that new entries start with.

A tensor whose values scale by c has gradients that scale by 1/c. So state that accumulates gradients
scales by 1/c, and state that accumulates their squares by 1/c². Old entries then have the moments that
training the grown tensor would have given.

Coupled L2 is an exception (``weight_decay`` of Adam, SGD and related optimizers, but not of AdamW and
Muon). It adds weights, which scale by c, to gradients, and the moments hold only the sum. The sum is
scaled like gradients, and the error decays at the pace of the betas.

New entries have no history. The moment policy says how optimizers that count steps per tensor treat them:

``fresh-new`` (default): old entries keep their history, new entries count their steps from 0.
    Their first update under Adam is one learning rate.
``carry``: old entries keep their history, new entries have zero moments but the step count of their tensor.
    Late in training their first update is (1 - beta1) / sqrt(1 - beta2) learning rates: 3.2 at betas 0.9
    and 0.999. (Entirely new tensors, those of inserted layers, start counting at zero.)
``reset``: all entries lose their history, as with a new optimizer.

If head groups with different step counts merge into one tensor, the tensor gets the larger count. Under
Adam the younger entries keep the smaller count, with both policies that keep history. Other
optimizers that use the count have one per tensor only, so growing such groups raises an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, Adamax, Muon, NAdam, Optimizer, RAdam, RMSprop

from nasgrow.adam_ages import AGES, Ages, ages_of, ratio
from nasgrow.errors import UserError
from nasgrow.growth.plan import Copy, TensorPlan, without
from nasgrow.growth.tensors import grow_tensor
from nasgrow.params import Box, index

MomentPolicy = Literal["fresh-new", "carry", "reset"]

_OF_WEIGHTS = -1
"""The power of state that holds weights, such as a slow or averaged copy of a parameter."""

_ADAM: Mapping[str, int] = {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2}

GRADIENT_POWERS: Mapping[type[Optimizer], Mapping[str, int]] = {
    Adam: _ADAM,
    NAdam: _ADAM,
    RAdam: _ADAM,
    Adamax: {"exp_avg": 1, "exp_inf": 1},
    Adagrad: {"sum": 2},
    SGD: {"momentum_buffer": 1},
    Muon: {"momentum_buffer": 1},
    RMSprop: {"square_avg": 2, "grad_avg": 1, "momentum_buffer": 0},
}
"""For each optimizer, the power of the gradient that its state tensors are measured in.

RMSprop's momentum accumulates gradients that are already normalised, so its power is 0.
"""

State = dict[str, Any]


def check_policy(policy: object, optimizers: Iterable[Optimizer]) -> None:
    """Raise ``UserError`` unless ``policy`` is a moment policy that suits the optimizers."""
    if policy not in get_args(MomentPolicy):
        raise UserError(f"moment policy must be one of {', '.join(get_args(MomentPolicy))}, not {policy!r}")
    for optimizer in optimizers:
        corrects = any("exp_avg" in state and "step" in state for state in optimizer.state.values())
        if policy == "fresh-new" and corrects and not isinstance(optimizer, Adam):
            raise UserError(
                f"moment policy 'fresh-new' knows the bias correction of Adam and AdamW, not that of "
                f"{type(optimizer).__name__}; use 'carry' or 'reset'"
            )


def grow_state(
    plan: TensorPlan,
    weights: Tensor,
    old: Mapping[str, tuple[Tensor, State]],
    optimizer: Optimizer,
    group: Mapping[str, Any],
    *,
    policy: MomentPolicy,
    powers: Mapping[str, int],
) -> State:
    """Return the optimizer state of a grown parameter.

    It is empty if the policy is ``reset`` or no old parameter has state.

    Args:
        plan: Where each value comes from.
        weights: The grown parameter's values.
        old: The old parameters that it takes values from, with their states, by name.
        optimizer: The optimizer that the state belongs to.
        group: The parameter group, for its settings.
        policy: The moment policy.
        powers: The power of the gradient that each state tensor is measured in.

    Raises:
        UserError: A part of the state is of another type or shape than expected or has no power, or
            tensors with different step counts would merge and the optimizer cannot have both.
    """
    states = {name: state for name, (_, state) in old.items() if state}
    if policy == "reset" or not states:
        return {}
    eldest = max(states.values(), key=_steps)
    grown: State = {}
    for key, value in eldest.items():
        if key == AGES:
            continue
        if value is None or isinstance(value, int | float):
            grown[key] = value
            continue
        if not isinstance(value, Tensor):
            raise UserError(
                f"cannot grow the optimizer state {key!r}: it is a {type(value).__name__}, no tensor"
            )
        if value.dim() == 0:
            grown[key] = value.clone()
            continue
        sources = {}
        for name, (parameter, state) in old.items():
            if key in state:
                if state[key].shape != parameter.shape:
                    raise UserError(
                        f"cannot grow the optimizer state {key!r} of {name}: its shape "
                        f"{tuple(state[key].shape)} is not the parameter's, {tuple(parameter.shape)}"
                    )
                sources[name] = state[key]
        power = _power(key, powers)
        start = _start(key, optimizer)
        if start:
            sources = {name: source - start for name, source in sources.items()}
        grown[key] = grow_tensor(plan, sources, power=power, like=value).add_(start)
        if power == _OF_WEIGHTS:
            copied = grow_tensor(plan, {name: p for name, (p, _) in old.items()}, power=power, like=weights)
            grown[key].add_(weights - copied)  # the values that the operator added to the weights
    if isinstance(optimizer, Adam):
        _join_histories(grown, plan, states, group["betas"], policy)
    else:
        _check_counts(states, optimizer, group)
    return grown


def _start(key: str, optimizer: Optimizer) -> float:
    """Return the value of a state tensor's entries before their first step."""
    if key == "sum" and isinstance(optimizer, Adagrad):
        return float(optimizer.defaults["initial_accumulator_value"])
    return 0.0


def check_powers(powers: object) -> None:
    """Raise ``UserError`` unless ``powers`` is None or maps names to integers."""
    if powers is None:
        return
    if not isinstance(powers, Mapping) or not all(isinstance(power, int) for power in powers.values()):
        raise UserError(f"state_powers must map names to integer powers, not {powers!r}")


def powers_for(optimizer: Optimizer, more: Mapping[str, int] | None) -> dict[str, int]:
    """Return the known powers of the gradient for ``optimizer``, updated with ``more``, if any.

    There are none for an optimizer that is not in :data:`GRADIENT_POWERS`.
    """
    known = [powers for kind, powers in GRADIENT_POWERS.items() if isinstance(optimizer, kind)]
    return {**(known[0] if known else {}), **(more or {})}


def _power(key: str, powers: Mapping[str, int]) -> int:
    if key not in powers:
        raise UserError(
            f"cannot grow the optimizer state {key!r}: say how it scales with state_powers={{{key!r}: 1}} "
            "(1: like a gradient, 2: like its square, -1: like a weight)"
        )
    return powers[key]


def _steps(state: State) -> int:
    return int(state.get("step", 0))


def _check_counts(states: Mapping[str, State], optimizer: Optimizer, group: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if tensors with different step counts merge and the optimizer uses the count."""
    if isinstance(optimizer, RMSprop) or (isinstance(optimizer, Adagrad) and not group["lr_decay"]):
        return
    counts = {name: _steps(state) for name, state in states.items()}
    young, old = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    if counts[young] != counts[old]:
        raise UserError(
            f"cannot merge {young} and {old}: {type(optimizer).__name__} has trained them for "
            f"{counts[young]} and {counts[old]} steps, and counts for whole tensors only; use the moment "
            "policy 'reset', or Adam or AdamW"
        )


def _join_histories(
    grown: State,
    plan: TensorPlan,
    states: Mapping[str, State],
    betas: tuple[float, float],
    policy: MomentPolicy,
) -> None:
    """Rescale Adam's moments of entries that are younger than the grown tensor, and record their ages.

    :mod:`nasgrow.adam_ages` explains the factor.
    """
    step = _steps(grown)
    if step == 0:
        return
    boxes = [(box, 0) for box in plan.new] if policy == "fresh-new" else []
    for copy in plan.copies:
        state = states.get(copy.source.name, {})
        own = _steps(state)
        boxes += _young_boxes(copy, state, own, step)
        if 0 < own < step:
            for key, beta in (("exp_avg", 0), ("exp_avg_sq", 1), ("max_exp_avg_sq", 1)):
                if key in grown:
                    part = grown[key].view(plan.entry.sizes)[index(copy.put)]
                    part.mul_(ratio(float(betas[beta]), own, step))
    if boxes:
        grown[AGES] = Ages(plan.entry.sizes, step, tuple(boxes))


def _young_boxes(copy: Copy, state: State, own: int, step: int) -> list[tuple[Box, int]]:
    """Return the copied boxes that are younger than ``step``, each with its age.

    These are the boxes that the source lists as young, and the rest of the copy if the source itself
    has fewer steps.

    Args:
        copy: The copy.
        state: The optimizer state of its source.
        own: The step count of its source.
        step: The step count of the grown tensor.
    """
    young = []
    ages = ages_of(state)
    for box, age in () if ages is None else ages.boxes:
        if (moved := copy.moved(box)) is not None:
            young.append((moved, age))
    if own < step:
        young += [(box, own) for box in without(copy.put, [box for box, _ in young])]
    return young
