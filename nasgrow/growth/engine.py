"""Grow a model and its optimizers in place, all or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nasgrow.expansions import Expansion, expand
from nasgrow.growth.moments import MomentPolicy, State, check_policy, grow_state, powers_for
from nasgrow.growth.plan import TensorPlan, index, plan_growth
from nasgrow.growth.tensors import grow_tensor
from nasgrow.model import Initialiser, Transformer, fresh, generator_for
from nasgrow.shape import Shape


@dataclass(frozen=True)
class Growth:
    """What one event did: the shapes before and after, and where each new tensor's values came from."""

    old: Shape
    new: Shape
    plans: Mapping[str, TensorPlan]

    def new_parts(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The parts of the grown model's tensors (values or gradients, by name) that the event added."""
        for name, plan in self.plans.items():
            for box in plan.new:
                yield name, tensors[name].view(plan.entry.sizes)[index(box)]

    def new_gradient_norm(self, model: Transformer) -> float:
        """The norm of the gradient that reaches the new parts of the grown model."""
        gradients = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in model.named_parameters()
        }
        parts = [part.norm() for _, part in self.new_parts(gradients)]
        return float(torch.stack(parts).norm()) if parts else 0.0


def grow(
    model: Transformer,
    optimizers: Optimizer | Sequence[Optimizer] | None,
    expansions: Iterable[Expansion],
    *,
    seed: int = 0,
    init: Initialiser = fresh,
    moments: MomentPolicy = "fresh-new",
    state_powers: Mapping[str, int] | None = None,
) -> Growth:
    """Apply expansions to a model, its gradients and its optimizers' state, without changing its function.

    The expansions are applied together: the model goes from its shape to the final one in one step. An error
    leaves model and optimizers as they were. New tensors (of inserted layers and of new head groups) join the
    parameter group of the same tensor in the nearest old layer.

    Args:
        model: The model; it keeps its identity, device and dtype.
        optimizers: The optimizer or optimizers that train it, if any.
        expansions: What to apply, in order.
        seed: The random draw for free values depends on it and on the tensor's name alone.
        init: Gives the free values; a fresh model's by default.
        moments: The history that new entries start with.
        state_powers: For optimizers that are not known here, the power of the gradient that each of their
            state tensors is measured in, as in :data:`nasgrow.growth.moments.GRADIENT_POWERS`.

    Raises:
        ValueError: An expansion does not fit the model's shape, or the model or an optimizer is not one that
            can be grown.
    """
    if not isinstance(model, Transformer):
        raise ValueError(f"can only grow a nasgrow Transformer, not a {type(model).__name__}")
    old_shape, old = model.shape, dict(model.named_parameters())
    trainers = _listed(optimizers)
    places = _places(old, trainers)
    for optimizer in trainers:
        check_policy(moments, optimizer)
    new_shape, lineage = expand(old_shape, expansions)
    plans = plan_growth(old_shape, new_shape, lineage, model.variant)

    grown: dict[str, nn.Parameter] = {}
    states: dict[str, State] = {}
    for name, plan in plans.items():
        pattern = old[plan.pattern.name]
        sources = {copy.source.name: old[copy.source.name] for copy in plan.copies}
        if plan.unchanged:
            grown[name] = pattern
        else:
            grown[name] = _grow_parameter(plan, sources, pattern, init, generator_for(seed, name))
        place = places.get(plan.pattern.name)
        if place is None:
            continue
        if plan.unchanged and moments != "reset":
            states[name] = _state(place, pattern)
        else:
            held = {n: (p, _state(places.get(n), p)) for n, p in sources.items()}
            powers = powers_for(place.optimizer, state_powers)
            states[name] = grow_state(plan, held, place.group, policy=moments, powers=powers)

    # Nothing below can fail: from here on the old model is gone.
    model.install(new_shape, grown)
    for optimizer in trainers:
        for parameter in old.values():
            optimizer.state.pop(parameter, None)
        for group in optimizer.param_groups:
            members = [
                (name, parameter)
                for name, parameter in model.named_parameters()
                if (place := places.get(plans[name].pattern.name)) is not None and place.group is group
            ]
            _replace_members(group, old.values(), members)
            for name, parameter in members:
                if states[name]:
                    optimizer.state[parameter] = states[name]
    return Growth(old_shape, new_shape, plans)


@dataclass(frozen=True)
class _Place:
    """Where a parameter is trained."""

    optimizer: Optimizer
    group: dict[str, Any]


def _state(place: _Place | None, parameter: nn.Parameter) -> State:
    return {} if place is None else place.optimizer.state.get(parameter, {})


def _listed(optimizers: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    listed = (
        [] if optimizers is None else [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    )
    for optimizer in listed:
        if not isinstance(optimizer, Optimizer):
            raise ValueError(f"{optimizer!r} is not a torch optimizer")
    return listed


def _places(parameters: Mapping[str, nn.Parameter], optimizers: Sequence[Optimizer]) -> dict[str, _Place]:
    """The optimizer and group of each parameter that has one."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    places: dict[str, _Place] = {}
    for optimizer in optimizers:
        held = [
            (names[id(parameter)], group)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in names
        ]
        if not held:
            raise ValueError(f"{type(optimizer).__name__} holds none of this model's parameters")
        for name, group in held:
            if name in places:
                raise ValueError(f"{name} is held by two optimizers")
            places[name] = _Place(optimizer, group)
    return places


def _grow_parameter(
    plan: TensorPlan,
    sources: Mapping[str, nn.Parameter],
    pattern: nn.Parameter,
    init: Initialiser,
    generator: torch.Generator,
) -> nn.Parameter:
    """Grow one parameter and its gradient."""

    def fill(sizes: tuple[int, ...]) -> Tensor:
        return init(plan.entry, sizes, generator)

    values = grow_tensor(plan, sources, power=-1, like=pattern, fill=fill)
    parameter = nn.Parameter(values, requires_grad=pattern.requires_grad)
    gradients = {name: source.grad for name, source in sources.items() if source.grad is not None}
    if gradients:
        parameter.grad = grow_tensor(plan, gradients, power=1, like=pattern)
    return parameter


def _replace_members(
    group: dict[str, Any], old: Iterable[nn.Parameter], members: Sequence[tuple[str, nn.Parameter]]
) -> None:
    """Put the grown parameters in the place of the old ones, before any that are not the model's."""
    ours = {id(parameter) for parameter in old}
    others = [i for i, parameter in enumerate(group["params"]) if id(parameter) not in ours]
    if "param_names" in group:
        group["param_names"] = [name for name, _ in members] + [group["param_names"][i] for i in others]
    group["params"] = [parameter for _, parameter in members] + [group["params"][i] for i in others]
