"""The operator ``ligo`` (LiGO, Wang et al., 2023): the new parameters are a learned linear map of the old.

The map is factorised.

- Width: each axis that grows has a matrix from the old units to the new ones, so a tensor W with axes
  (a, b) becomes A W B^T. Tensors that share an axis share its matrix, whether they write or read its units.
  There is one matrix for the residual stream of the whole model. Each old layer has one for its MLP units,
  one for its value units, one for queries and one for keys (the units of all heads form one axis).
- Depth: layer i of the new model is the sum over old layers j of w_ij times the widened layer j, with
  separate weights w for each kind of tensor.

Adam trains all matrices and weights together on the loss of the grown model. The old parameters do not
change.

The map starts as a known operator.

- Width: net2net's copies, exact if an old head fits into each new one. Readers of m copies are divided by
  m and writers are not, so a fixed factor for readers accompanies the shared matrix. Under RoPE new key
  units start at zero. If some new head is too small for every old one, old heads are taken in turn and cut
  to its size.
- Depth: stacking, w_ij = 1 for j = i mod N.

Further copies get a little noise; without it they would stay equal forever.

The optimizer state of every tensor is reset. Each entry is a learned mixture of old ones, so no old moment
belongs to its gradients. The paper resets its optimizer as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.optim import Adam

from nasgrow.errors import UserError
from nasgrow.growth.operators.contract import Parts, Recipe, Situation
from nasgrow.growth.operators.grown_weights import batches_for, learn_from
from nasgrow.growth.plan import TensorPlan, plan_growth
from nasgrow.model import Transformer
from nasgrow.operators import Ligo, copied_heads, joint_axes
from nasgrow.params import ROWS, Box, table
from nasgrow.shape import Shape, Variant

NOISE = 0.01
"""The norm of the noise on a matrix row that makes a further copy of a unit."""


def recipe(operator: Ligo, situation: Situation) -> Recipe:
    """Train the map, and return a recipe that fills every tensor with the map's result.

    Raises:
        UserError: There are no batches.
    """
    s = situation
    batches = batches_for(operator.kind, s)
    growth_map = Map.start(s)
    model = Transformer(
        s.new, s.variant, init=lambda entry, sizes, generator: torch.zeros(sizes, device="cpu")
    )
    optimizer = Adam(growth_map.learned, lr=operator.learning_rate)
    with torch.enable_grad():
        for _ in range(operator.steps):
            _backward(growth_map, model, next(batches))
            optimizer.step()
            optimizer.zero_grad()
    made = growth_map()

    def fill(plan: TensorPlan, box: Box, generator: torch.Generator) -> Tensor:
        return made[plan.entry.name].detach().view(plan.entry.sizes)

    plans = {
        name: replace(plan, copies=(), zeros=(), free=(tuple((0, size) for size in plan.entry.sizes),))
        for name, plan in plan_growth(s.old, s.new, s.lineage, s.variant).items()
    }
    return Recipe(plans, fill, s.lineage)


def _backward(growth_map: Map, model: Transformer, parts: Parts) -> None:
    """Add the gradients of a batch's loss to the matrices and weights of the map.

    Backpropagate to the grown model's tensors part by part, then once from there through the map.
    """
    made = growth_map()
    seen = {name: tensor.detach().requires_grad_(tensor.requires_grad) for name, tensor in made.items()}
    learn_from(parts, lambda tokens_bs: functional_call(model, seen, (tokens_bs,)), growth_map.like.device)
    learned = [name for name, tensor in seen.items() if tensor.grad is not None]
    torch.autograd.backward([made[name] for name in learned], [seen[name].grad for name in learned])


class _Units(NamedTuple):
    """The initial map of an axis: for each new unit, the old unit that it copies and the factor."""

    origins: Sequence[int]
    factors: Sequence[float]

    @property
    def shares(self) -> list[float]:
        """For each new unit, one divided by the number of copies of its old unit."""
        return [1 / self.origins.count(origin) for origin in self.origins]


@dataclass(frozen=True)
class Map:
    """The learned map from the old tensors to those of the grown model.

    Attributes:
        old: The shape before.
        new: The shape after.
        variant: The kind of transformer.
        tensors: The old tensors by old layer and role, with all heads of a layer in one tensor.
        matrices: The matrix (new units, old units) of each axis that grows, by axis and old layer.
        beside: The fixed factor of tensors that read the MLP or value units of a matrix; for ``h``,
            the factor of gains. Those of queries and keys are not used.
        depth: The weights (new layers, old layers) by role; empty if the number of layers stays.
        like: A tensor with the dtype and device of the map.
    """

    old: Shape
    new: Shape
    variant: Variant
    tensors: Mapping[tuple[int | None, str], Tensor]
    matrices: Mapping[tuple[str, int | None], Tensor]
    beside: Mapping[tuple[str, int | None], Tensor]
    depth: Mapping[str, Tensor]
    like: Tensor

    @staticmethod
    def start(s: Situation) -> Map:
        """Return the initial map: copies in width, with a little noise, and stacking in depth."""
        like = s.parameters["embedding"].detach()
        places: list[int | None] = [None, *range(len(s.old.layers))]
        tensors = {
            (layer, role): _joined(s.old, s.variant, layer, role, s.parameters)
            for layer in places
            for role in joint_axes(s.old, s.variant, layer)
        }
        deeper = len(s.new.layers) > len(s.old.layers)
        matrices, beside = {}, {}
        for layer in places:
            for axis, size, units in _starts(s, layer, 0 if deeper else layer):
                again = []
                matrix = torch.zeros(len(units.origins), size, device="cpu", dtype=torch.float64)
                for unit, (origin, factor) in enumerate(zip(units.origins, units.factors, strict=True)):
                    matrix[unit, origin] = factor
                    if origin in units.origins[:unit]:
                        again.append(unit)
                generator = s.generator(f"ligo: {axis} of layer {layer}")
                drawn = torch.randn(len(again), size, generator=generator, device="cpu")
                matrix[again] += NOISE / sqrt(size) * drawn
                matrices[axis, layer] = matrix.to(like).requires_grad_()
                shares = torch.tensor(units.shares, device="cpu", dtype=torch.float64)
                if axis == "h":
                    shares = shares.rsqrt() * sqrt(s.old.hidden / s.new.hidden)
                beside[axis, layer] = shares.to(like)
        depth = {}
        if deeper:
            count, many = len(s.old.layers), len(s.new.layers)
            for role in joint_axes(s.old, s.variant, 0):
                weights = torch.zeros(many, count, device="cpu")
                weights[range(many), [index % count for index in range(many)]] = 1
                depth[role] = weights.to(like).requires_grad_()
        return Map(s.old, s.new, s.variant, tensors, matrices, beside, depth, like)

    @property
    def learned(self) -> list[Tensor]:
        """The tensors to train: matrices and weights."""
        return [*self.matrices.values(), *self.depth.values()]

    def __call__(self) -> dict[str, Tensor]:
        """Return the tensors of the grown model, by name."""
        wide = {place: self._widened(*place) for place in self.tensors}
        made: dict[tuple[int | None, str], Tensor] = {}
        if self.depth:
            for role, weights in self.depth.items():
                stacked = torch.stack([wide[layer, role] for layer in range(len(self.old.layers))])
                made |= {(i, role): t for i, t in enumerate(torch.tensordot(weights, stacked, 1).unbind())}
            made |= {place: tensor for place, tensor in wide.items() if place[0] is None}
        else:
            made = wide
        return dict(
            chain.from_iterable(
                _parted(self.new, self.variant, *place, tensor) for place, tensor in made.items()
            )
        )

    def _widened(self, layer: int | None, role: str) -> Tensor:
        tensor = self.tensors[layer, role]
        for index, axis in enumerate(joint_axes(self.old, self.variant, layer)[role]):
            place = (axis, None if axis == "h" else layer)
            if place not in self.matrices:
                continue
            tensor = torch.tensordot(self.matrices[place], tensor, ([1], [index])).movedim(0, index)
            if ROWS[role].diagonal or (role, axis) in (("down", "p"), ("out", "V")):
                sizes = [-1 if other == index else 1 for other in range(tensor.dim())]
                tensor = tensor * self.beside[place].view(sizes)
        return tensor


def _starts(s: Situation, layer: int | None, grown: int | None) -> Iterator[tuple[str, int, _Units]]:
    """Yield each axis that grows: name, old size, and the initial map of its units.

    Args:
        s: The situation.
        layer: The old layer, or None for the axis ``h``.
        grown: The layer of the grown model whose sizes the old layer gets.
    """
    if layer is None:
        if s.new.hidden > s.old.hidden:
            origins = [unit % s.old.hidden for unit in range(s.new.hidden)]
            yield "h", s.old.hidden, _Units(origins, [origins.count(unit) ** -0.5 for unit in origins])
        return
    assert grown is not None
    before, after = s.old.layers[layer], s.new.layers[grown]
    if after.mlp > before.mlp:
        yield "p", before.mlp, _Units([unit % before.mlp for unit in range(after.mlp)], [1.0] * after.mlp)
    for axis, which in (("Q", 0), ("K", 0), ("V", 1)):
        sizes, news = ([head[which] for head in found.heads] for found in (before, after))
        if sum(news) == sum(sizes):
            continue
        origins, factors = [], []
        sources = _head_origins(s, grown, layer)
        for source, size in zip(sources, news, strict=True):
            own = [unit % sizes[source] for unit in range(size)]
            for unit, origin in enumerate(own):
                origins.append(sum(sizes[:source]) + origin)
                factor = 1.0
                if axis == "K":
                    factor = sqrt(size / sizes[source]) / own.count(origin)
                    if s.variant.positions == "rope":
                        factor = sqrt(size / sizes[source]) if unit < sizes[source] else 0.0
                factors.append(factor)
        yield axis, sum(sizes), _Units(origins, factors)


def _head_origins(s: Situation, layer: int, origin: int) -> Sequence[int]:
    """Return the old head that each head of a layer starts from.

    Each head starts from one that fits; if for some head none does, all are taken in turn.
    """
    try:
        return copied_heads(s.old, s.new, layer, origin, equal_keys=False)
    except UserError:
        many = s.old.layers[origin].head_count
        return [head % many for head in range(s.new.layers[layer].head_count)]


def _names(shape: Shape, variant: Variant, layer: int | None, role: str) -> list[str]:
    return [e.name for e in table(shape, variant).values() if (e.layer, e.role) == (layer, role)]


def _joined(
    shape: Shape, variant: Variant, layer: int | None, role: str, tensors: Mapping[str, Tensor]
) -> Tensor:
    """Return the tensor of a role with all head groups joined, with the axes of :func:`joint_axes`."""
    entries = table(shape, variant)
    parts, joint = [], 0
    for name in _names(shape, variant, layer, role):
        axes = entries[name].axes
        part = tensors[name].detach().view(entries[name].sizes)
        if "q" in axes:
            part = part.transpose(axes.index("E"), axes.index("q"))
        if "E" in axes:
            joint = _joint(axes)
            part = part.flatten(joint, joint + 1)
        parts.append(part)
    return torch.cat(parts, joint)


def _joint(axes: Sequence[str]) -> int:
    """Return the position of the axis that joins heads and their units: after the queries, if any."""
    return axes.index("q" if "q" in axes else "E")


def _parted(
    shape: Shape, variant: Variant, layer: int | None, role: str, tensor: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Split a joined tensor into the model's named tensors: the inverse of :func:`_joined`."""
    entries = table(shape, variant)
    names = _names(shape, variant, layer, role)
    if entries[names[0]].heads is None:
        yield names[0], tensor
        return
    of_heads = {name: dict(zip(entries[name].axes, entries[name].sizes, strict=True)) for name in names}
    axes = entries[names[0]].axes
    units, joint = "v" if "v" in axes else "k", _joint(axes)
    many = [sizes["E"] * sizes[units] for sizes in of_heads.values()]
    for (name, sizes), joined in zip(of_heads.items(), tensor.split(many, joint), strict=True):
        part = joined.unflatten(joint, (sizes["E"], sizes[units]))
        if "q" in axes:
            part = part.transpose(axes.index("E"), axes.index("q"))
        yield name, part.reshape(entries[name].stored)
