"""Grow a model and its optimizers in place, all or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from nasgrow.errors import UserError
from nasgrow.expansions import Expansion, Lineage, expand
from nasgrow.growth.attachments import check_modules, check_parameters
from nasgrow.growth.frozen_tensors import warn_of_dead
from nasgrow.growth.masks import Mask, moved
from nasgrow.growth.moments import MomentPolicy, State, check_policy, check_powers, grow_state, powers_for
from nasgrow.growth.operators import RECIPES, Recipe, Situation
from nasgrow.growth.operators.contract import Batches, in_parts
from nasgrow.growth.operators.grown_weights import weights_of
from nasgrow.growth.plan import TensorPlan
from nasgrow.growth.tensors import grow_tensor
from nasgrow.model import Initialiser, Transformer, fresh, generator_for
from nasgrow.operators import PRESERVE, AnyOperator, opening_within
from nasgrow.params import Box, index, table
from nasgrow.shape import Shape


@dataclass(frozen=True)
class Growth:
    """The result of one event: the shapes before and after, and the source of each new tensor's values.

    An operator may split an event into two growths, first width and then depth.

    Attributes:
        old: The shape before the event.
        new: The shape after it.
        plans: How each tensor was filled, by name; in the last growth, if there were two.
        added: The boxes of each grown tensor that the event added, in all of the event's growths.
        masks: The masks to apply to the grown model: those of this event and of earlier ones.
        course: The plans of each growth, in order.
    """

    old: Shape
    new: Shape
    plans: Mapping[str, TensorPlan] = field(repr=False)
    added: Mapping[str, Sequence[Box]] = field(repr=False)
    masks: Sequence[Mask] = field(default=(), repr=False)
    course: Sequence[Mapping[str, TensorPlan]] = field(default=(), repr=False)

    def warming(self, before: Iterable[Mask], spent: float, takes: float) -> list[Mask]:
        """Return the entries of the grown model that warm up, as masks: earlier ones and new ones.

        New ones are all that this event added. Further copies of earlier ones are among them.

        Args:
            before: The entries of the old model whose warm-up has not ended.
            spent: The fraction of the budget spent at the event, where new entries begin to warm up.
            takes: The length of the warm-up, as a fraction of the budget; above 0.
        """
        for plans in self.course:
            before = moved(before, plans.values(), copies=False)
        return [*before, *(Mask(n, box, spent, takes) for n, boxes in self.added.items() for box in boxes)]

    def new_parts(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the parts of tensors that the event added, each with its tensor's name.

        Args:
            tensors: The values or gradients of the grown model, by name.
        """
        for name, boxes in self.added.items():
            for box in boxes:
                yield name, tensors[name].view(self.plans[name].entry.sizes)[index(box)]

    def new_gradient_norm(self, model: Transformer) -> float:
        """Return the norm of the gradient of the entries that the event added.

        A parameter without a gradient counts as zero.
        """
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
    operator: AnyOperator = PRESERVE,
    batches: Batches | None = None,
    at_once: int | None = None,
    masks: Sequence[Mask] = (),
    spent: float = 0.0,
) -> Growth:
    """Grow a model in place, with its gradients and its optimizers' state.

    With the default operator the model computes the same function after the event. All expansions are
    applied in one step, or in two if the operator grows width before depth. If an error is raised, the
    model and the optimizers are unchanged.

    A new tensor (of an inserted layer or a new head group) joins the parameter group of the same
    tensor in the layer that it copies, or else in the nearest old layer. It is frozen if that tensor
    is. A warning lists frozen tensors whose new entries are zero: units added there have no effect.

    Old layers keep their modules, including hooks, subclasses and replaced methods. New layers and
    copies of layers get plain modules.

    Args:
        model: The model; it stays the same object, on the same device and in the same dtype.
        optimizers: The optimizer or optimizers that train the model; None without one. For an
            optimizer that wraps another, pass the outer one only.
        expansions: The expansions to apply, in order.
        seed: The seed of free new values. A draw depends on the seed, the tensor's name and the shapes
            before and after, so two events never share one.
        init: Called for each free box to get its values; by default those of a fresh model.
        moments: The optimizer history of new entries; see :mod:`nasgrow.growth.moments`.
        state_powers: The power of the gradient that each state tensor is measured in, for all
            optimizers; it overrides :data:`nasgrow.growth.moments.GRADIENT_POWERS`. -1 marks state
            that is like a weight; its new entries get the new weights.
        operator: How new parameters get their values.
        batches: Training batches, which operators that learn need. If two operators learn in one
            event, the second continues after the last batch of the first.
        at_once: The largest number of sequences that an operator that learns passes through the
            model at once; all of a batch by default.
        masks: The masks of earlier events that are not fully open. An operator that masks preserves
            the function only under the masks of the returned growth; see :mod:`nasgrow.growth.masks`.
        spent: The fraction of the budget spent, at which new masks begin to open.

    Returns:
        What the event added, and the masks that the grown model needs from now on.

    Raises:
        UserError: An expansion does not fit the model's shape; the operator does not support it; the
            operator learns, and there are no batches or masks are still opening; the model or an
            optimizer cannot be grown; or growth would lose a user's hook on the gradient of a
            tensor that grows, or an attachment to heads that are merged or split.
    """
    if not isinstance(model, Transformer):
        raise UserError(f"can only grow a nasgrow Transformer, not a {type(model).__name__}")
    old_shape, old = model.shape, _own_parameters(model)
    families = [_family(optimizer) for optimizer in _listed(optimizers)]
    places = _places(old, families)
    check_policy(moments, chain(*families))
    check_powers(state_powers)
    expansions = tuple(expansions) if isinstance(expansions, Iterable) else expansions
    expand(old_shape, expansions)  # report invalid expansions before those that the operator cannot do
    operator.check(old_shape, expansions, model.variant)

    for single, _ in operator.parts(old_shape, expansions):
        if masks and single.learns:
            raise UserError(
                f"operator {single.kind} cannot see masks, and masks of an earlier event are still opening"
            )

    shape = old_shape
    lineage: Lineage = tuple(range(len(shape.layers)))
    held = {
        name: _Held(parameter, places[name], [p.optimizer.state.get(parameter, {}) for p in places[name]])
        for name, parameter in old.items()
    }
    growth = Growth(shape, shape, {}, {})
    if at_once is not None and at_once < 1:
        raise UserError(f"at_once must be at least one sequence, not {at_once!r}")
    taken = None if batches is None else in_parts(batches, at_once)
    with torch.inference_mode(False), torch.no_grad():
        for single, share in operator.parts(old_shape, expansions):
            new_shape, origins = expand(shape, share)
            situation = Situation(
                shape,
                new_shape,
                origins,
                model.variant,
                {name: member.parameter for name, member in held.items()},
                init,
                # Shapes only ever grow, so no two events of a model share a random stream.
                partial(stream, seed, shape, new_shape),
                taken,
            )
            recipe = RECIPES[single.kind](single, situation)
            added = {name: _added(plan, growth.added) for name, plan in recipe.plans.items()}
            held = {
                name: _grow_one(plan, held, recipe, situation, moments, state_powers)
                for name, plan in recipe.plans.items()
            }
            opening = opening_within(recipe.opening, spent)
            new_masks = [Mask(n, box, spent, opening) for n, boxes in recipe.masked.items() for box in boxes]
            masks = [*moved(masks, recipe.plans.values()), *new_masks]
            course = (*growth.course, recipe.plans)
            growth = Growth(old_shape, new_shape, recipe.plans, added, masks, course)
            shape, lineage = new_shape, tuple(None if o is None else lineage[o] for o in recipe.lineage)

    check_modules(model, shape, lineage)
    parameters = {name: member.parameter for name, member in held.items()}
    check_parameters(old, set(map(id, parameters.values())))
    warn_of_dead(table(shape, model.variant), parameters, growth.added, stacklevel=2)
    # Nothing below can fail: from here on the old model is gone.
    model.install(shape, parameters, lineage)
    ordered = [name for name, _ in model.named_parameters() if name in held]
    for optimizer in chain(*families):
        for parameter in old.values():
            optimizer.state.pop(parameter, None)
    for group in {id(place.group): place.group for place in chain(*places.values())}.values():
        own = [n for n in ordered if any(place.group is group for place in held[n].places)]
        _replace_members(group, old.values(), [(name, held[name].parameter) for name in own])
    for member in held.values():
        for place, state in zip(member.places, member.states, strict=True):
            if state:
                place.optimizer.state[member.parameter] = state
    return growth


def stream(seed: int, old: Shape, new: Shape, name: str) -> torch.Generator:
    """Return the random generator of a tensor's new values in the growth from ``old`` to ``new``."""
    return generator_for(seed, f"{name}: {old} to {new}")


def _added(plan: TensorPlan, before: Mapping[str, Sequence[Box]]) -> list[Box]:
    """Return the boxes added to a tensor by this growth and by an earlier one of the same event."""
    earlier = [
        moved
        for copy in plan.copies
        if not copy.again
        for box in before.get(copy.source.name, ())
        if (moved := copy.moved(box)) is not None
    ]
    return [*plan.added, *earlier]


def _grow_one(
    plan: TensorPlan,
    held: Mapping[str, _Held],
    recipe: Recipe,
    situation: Situation,
    moments: MomentPolicy,
    state_powers: Mapping[str, int] | None,
) -> _Held:
    """Return one grown parameter with its gradient and its optimizer state."""
    pattern = held[plan.pattern.name]
    sources = {copy.source.name: held[copy.source.name] for copy in plan.copies}
    _check_alike(plan, sources)
    parameter, states = pattern.parameter, pattern.states
    stays = plan.unchanged and plan.entry.name not in recipe.changed
    if not stays:
        given = {name: source.parameter for name, source in sources.items()}
        parameter = _grow_parameter(plan, given, parameter, recipe, situation)
    if not (stays and moments != "reset"):
        states = [
            grow_state(
                plan,
                parameter.detach(),
                {name: (source.parameter.detach(), source.states[i]) for name, source in sources.items()},
                place.optimizer,
                place.group,
                policy=moments,
                powers=powers_for(place.optimizer, state_powers),
            )
            for i, place in enumerate(pattern.places)
        ]
    return _Held(parameter, pattern.places, states)


def _own_parameters(model: Transformer) -> dict[str, nn.Parameter]:
    """Return the parameters that the parameter table lists.

    Other parameters may hang on the model, but not on its layers: growing would lose them there.

    Raises:
        UserError: A listed parameter is missing, has another shape or is shared, or a layer has
            others.
    """
    expected = table(model.shape, model.variant)
    found = dict(model.named_parameters(remove_duplicate=False))
    holders: dict[int, str] = {}
    for name, parameter in found.items():
        other = holders.setdefault(id(parameter), name)
        if other != name:
            raise UserError(f"cannot grow this model: {other} and {name} are one shared parameter")
    for name in expected:
        if name not in found:
            raise UserError(f"cannot grow this model: its parameter {name} is missing or shared with another")
        if tuple(found[name].shape) != expected[name].stored:
            raise UserError(
                f"cannot grow this model: {name} is {tuple(found[name].shape)}, not {expected[name].stored}"
            )
    for name in found:
        if name not in expected and name.startswith("layers."):
            raise UserError(f"cannot grow this model: {name} was added to a layer, and growing would lose it")
    return {name: found[name] for name in expected}


@dataclass(frozen=True)
class _Place:
    """An optimizer, and one of its parameter groups, that trains a parameter."""

    optimizer: Optimizer
    group: dict[str, Any]


@dataclass(frozen=True)
class _Held:
    """A parameter, the optimizers that train it, and its state in each of them."""

    parameter: nn.Parameter
    places: Sequence[_Place]
    states: Sequence[State]


def _check_alike(plan: TensorPlan, sources: Mapping[str, _Held]) -> None:
    """Raise ``UserError`` if head groups are merged that differ in dtype, device, freezing or optimizer."""
    first, *rest = sources or [plan.pattern.name]
    for other in rest:
        a, b = sources[first].parameter, sources[other].parameter
        alike = (a.requires_grad, a.dtype, a.device) == (b.requires_grad, b.dtype, b.device)
        groups = [[id(place.group) for place in sources[name].places] for name in (first, other)]
        if not alike or groups[0] != groups[1]:
            raise UserError(
                f"cannot merge {first} and {other}: they differ in dtype, or are trained differently"
            )


def _listed(optimizers: object) -> list[Optimizer]:
    if optimizers is None:
        return []
    listed: list[Optimizer] = []
    for optimizer in optimizers if isinstance(optimizers, list | tuple) else [optimizers]:
        if not isinstance(optimizer, Optimizer):
            raise UserError(f"{optimizer!r} is not a torch optimizer")
        listed.append(optimizer)
    return listed


def _family(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizer and those that it wraps, without wrappers that share an inner state.

    Raises:
        UserError: One of them is LBFGS.
    """
    found, family = [optimizer], []
    for member in found:
        if isinstance(member, LBFGS):
            raise UserError("LBFGS keeps its own list of parameters, so what it trains cannot grow")
        held = chain(*map(_items, vars(member).values()))
        inner = [other for other in held if isinstance(other, Optimizer) and other not in found]
        found += inner
        if not any(other.state is member.state for other in inner):
            family.append(member)
    return family


def _items(value: object) -> Iterable[object]:
    """Return the values of a mapping, the items of a list or tuple, or else only the value itself."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else [value]


def _places(
    parameters: Mapping[str, nn.Parameter], families: Sequence[Sequence[Optimizer]]
) -> dict[str, list[_Place]]:
    """Return the optimizers and groups that train each parameter, by the parameter's name.

    A parameter may have no optimizer, one, or several of the same family. Optimizers may also
    train parameters of other models.

    Args:
        parameters: The model's parameters, by name.
        families: Each optimizer with those that it wraps, as :func:`_family` returns them.

    Raises:
        UserError: A family trains none of the parameters, or two families train the same one.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    places: dict[str, list[_Place]] = {name: [] for name in parameters}
    for family in families:
        held = [
            (names[id(parameter)], _Place(optimizer, group))
            for optimizer in family
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in names
        ]
        if not held:
            raise UserError(f"{type(family[0]).__name__} holds none of this model's parameters")
        for name, place in held:
            if any(other.optimizer not in family for other in places[name]):
                raise UserError(f"{name} is held by two optimizers")
            places[name].append(place)
    return places


def _grow_parameter(
    plan: TensorPlan,
    sources: Mapping[str, nn.Parameter],
    pattern: nn.Parameter,
    recipe: Recipe,
    situation: Situation,
) -> nn.Parameter:
    """Return one grown parameter with its gradient.

    Args:
        plan: Where its values come from.
        sources: The old parameters that its values are copied from, by name.
        pattern: The old parameter that gives it ``requires_grad``, and its gradient a dtype and device.
        recipe: The recipe of the operator.
        situation: The input of the operator.
    """
    values = weights_of(plan, sources, recipe, situation)
    parameter = nn.Parameter(values, requires_grad=pattern.requires_grad)
    gradients = {name: source.grad for name, source in sources.items() if source.grad is not None}
    if gradients:
        parameter.grad = grow_tensor(plan, gradients, power=1, like=pattern)
    return parameter


def _replace_members(
    group: dict[str, Any], old: Iterable[nn.Parameter], members: Sequence[tuple[str, nn.Parameter]]
) -> None:
    """Replace a group's old parameters by the grown ones, in the model's order.

    They go where the first old one was. Parameters of other models stay. A group in which no
    parameter changed keeps its order, and only its names are updated.
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
