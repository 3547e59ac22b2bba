"""Grow a model and its optimizers in place, all or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from nasgrow.expansions import Expansion, expand
from nasgrow.growth.moments import MomentPolicy, State, check_policy, check_powers, grow_state, powers_for
from nasgrow.growth.plan import TensorPlan, index, plan_growth
from nasgrow.growth.tensors import grow_tensor
from nasgrow.model import Initialiser, Transformer, fresh, generator_for
from nasgrow.params import table
from nasgrow.shape import Shape


@dataclass(frozen=True)
class Growth:
    """What one event did: the shapes before and after, and where each new tensor's values came from."""

    old: Shape
    new: Shape
    plans: Mapping[str, TensorPlan] = field(repr=False)

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
        seed: The random draw for free values depends on it, the tensor's name, and the shapes before and
            after; two events never share a draw.
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
    old_shape, old = model.shape, _own_parameters(model)
    listed = _listed(optimizers)
    places = _places(old, listed)
    check_policy(moments, listed)
    check_powers(state_powers)
    new_shape, lineage = expand(old_shape, expansions)
    plans = plan_growth(old_shape, new_shape, lineage, model.variant)

    grown: dict[str, nn.Parameter] = {}
    states: dict[str, State] = {}
    with torch.inference_mode(False), torch.no_grad():
        for name, plan in plans.items():
            pattern, place = old[plan.pattern.name], places.get(plan.pattern.name)
            sources = {copy.source.name: old[copy.source.name] for copy in plan.copies}
            _check_alike(plan, sources, places)
            if plan.unchanged:
                grown[name] = pattern
            else:
                # Shapes only ever grow, so no two events of a model share a random stream.
                generator = generator_for(seed, f"{name}: {old_shape} to {new_shape}")
                grown[name] = _grow_parameter(plan, sources, pattern, init, generator)
            if place is None:
                continue
            if plan.unchanged and moments != "reset":
                states[name] = place.optimizer.state.get(pattern, {})
            else:
                held = {n: (p, place.optimizer.state.get(p, {})) for n, p in sources.items()}
                powers = powers_for(place.optimizer, state_powers)
                states[name] = grow_state(plan, held, place.group, policy=moments, powers=powers)

    # Nothing below can fail: from here on the old model is gone.
    model.install(new_shape, grown, lineage)
    ordered = [name for name, _ in model.named_parameters() if name in grown]
    for optimizer in listed:
        for parameter in old.values():
            optimizer.state.pop(parameter, None)
    for group_id, group in {id(place.group): place.group for place in places.values()}.items():
        held_by = [n for n in ordered if (p := places.get(plans[n].pattern.name)) and id(p.group) == group_id]
        _replace_members(group, old.values(), [(name, grown[name]) for name in held_by])
        for name in held_by:
            if states[name]:
                places[plans[name].pattern.name].optimizer.state[grown[name]] = states[name]
    return Growth(old_shape, new_shape, plans)


def _own_parameters(model: Transformer) -> dict[str, nn.Parameter]:
    """The parameters that the table lists, all of them; whatever else hangs on the model may stay."""
    expected = table(model.shape, model.variant)
    found = dict(model.named_parameters(remove_duplicate=False))
    holders: dict[int, str] = {}
    for name, parameter in found.items():
        other = holders.setdefault(id(parameter), name)
        if other != name:
            raise ValueError(f"cannot grow this model: {other} and {name} are one shared parameter")
    for name in expected:
        if name not in found:
            raise ValueError(
                f"cannot grow this model: its parameter {name} is missing or shared with another"
            )
        if tuple(found[name].shape) != expected[name].stored:
            raise ValueError(
                f"cannot grow this model: {name} is {tuple(found[name].shape)}, not {expected[name].stored}"
            )
    for name in found:
        if name not in expected and name.startswith("layers."):
            raise ValueError(
                f"cannot grow this model: {name} was added to a layer, and growing would lose it"
            )
    return {name: found[name] for name in expected}


def _check_alike(plan: TensorPlan, sources: Mapping[str, nn.Parameter], places: Mapping[str, _Place]) -> None:
    """Head groups become one tensor only if they are trained alike."""
    first, *rest = sources or [plan.pattern.name]
    for other in rest:
        a, b = sources[first], sources[other]
        alike = (a.requires_grad, a.dtype, a.device) == (b.requires_grad, b.dtype, b.device)
        groups = [places[name].group if name in places else None for name in (first, other)]
        if not alike or groups[0] is not groups[1]:
            raise ValueError(
                f"cannot merge {first} and {other}: they differ in dtype, or are trained differently"
            )


@dataclass(frozen=True)
class _Place:
    """Where a parameter is trained."""

    optimizer: Optimizer
    group: dict[str, Any]


def _listed(optimizers: object) -> list[Optimizer]:
    if optimizers is None:
        return []
    listed: list[Optimizer] = []
    for optimizer in optimizers if isinstance(optimizers, list | tuple) else [optimizers]:
        if not isinstance(optimizer, Optimizer):
            raise ValueError(f"{optimizer!r} is not a torch optimizer")
        if isinstance(optimizer, LBFGS):
            raise ValueError("LBFGS keeps its own list of parameters, so what it trains cannot grow")
        listed.append(optimizer)
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
        values = init(plan.entry, sizes, generator)
        if not isinstance(values, Tensor) or tuple(values.shape) != sizes:
            what = f"a tensor of {tuple(values.shape)}" if isinstance(values, Tensor) else repr(values)
            raise ValueError(f"init must give a tensor of {sizes} for {plan.entry.name}, not {what}")
        return values

    values = grow_tensor(plan, sources, power=-1, like=pattern, fill=fill)
    parameter = nn.Parameter(values, requires_grad=pattern.requires_grad)
    gradients = {name: source.grad for name, source in sources.items() if source.grad is not None}
    if gradients:
        parameter.grad = grow_tensor(plan, gradients, power=1, like=pattern)
    return parameter


def _replace_members(
    group: dict[str, Any], old: Iterable[nn.Parameter], members: Sequence[tuple[str, nn.Parameter]]
) -> None:
    """Put the grown parameters, in the model's order, where the first of the old ones was.

    A group in which no parameter changed keeps its order, and only takes on new names.
    """
    ours = {id(parameter) for parameter in old}
    held = group["params"]
    names = {id(parameter): name for name, parameter in members}
    foreign = {i: held[i] for i in range(len(held)) if id(held[i]) not in ours}
    if names.keys() != {id(parameter) for parameter in held} - {id(p) for p in foreign.values()}:
        first = next(i for i in range(len(held)) if i not in foreign)
        before = [p for i, p in foreign.items() if i < first]
        after = [p for i, p in foreign.items() if i > first]
        group["params"] = [*before, *(parameter for _, parameter in members), *after]
    if "param_names" in group:
        names.update({id(p): group["param_names"][i] for i, p in foreign.items()})
        group["param_names"] = [names[id(parameter)] for parameter in group["params"]]
