"""Fusion of two different models into a wider one (Mazzawi et al., 2023, "Deep Fusion").

The fused model has both in it, side by side, and gives the average of their logits: matrices are
block-diagonal, embeddings and gains stand next to each other, and the output adds up the halves' halves.

RMSNorm is the one place where they meet: it divides both by the root mean square of the whole stream. In the
scale below a norm divides by the root of (S_a + S_b) / 2 + epsilon, S being the models' sums of squares,
where each alone would divide by that of S_a + epsilon or S_b + epsilon. So the fused logits are exactly the
average

- of the two models in which every norm has that joint sum: what the fused model is in general;
- of the two models as they are, if their sums are equal at every norm: a model with itself, or with one that
  is the same up to the order and the signs of its hidden units.

Models of one size that were trained alike have similar sums, and then it is near. (If hidden sizes differ,
the scale is that for equal means of squares.)
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor, nn

from nasgrow.errors import UserError
from nasgrow.model import Transformer
from nasgrow.params import Box, TensorSpec, index, table
from nasgrow.shape import Layer, Shape

_SHARE = sqrt(1 / 2)
"""The part of the stream that each model writes: together they have the mean of their sums of squares."""


def fuse(first: Transformer, second: Transformer) -> Transformer:
    """A model with both in it, whose logits are about the average of theirs; see the module.

    Hidden size, MLP widths and heads add up, layer by layer. The fused model has the dtype and device of the
    first; neither is changed, and it has no optimizer state.

    Raises:
        UserError: They differ in variant, vocabulary, context or number of layers, or have ``qk_norm``.
    """
    a, b = first.shape, second.shape
    for what, one, other in (
        ("vocabulary", first.variant.vocab, second.variant.vocab),
        ("context", first.variant.context, second.variant.context),
        ("variant", first.variant, second.variant),
        ("number of layers", len(a.layers), len(b.layers)),
    ):
        if one != other:
            raise UserError(f"cannot fuse models that differ in {what}: {one} and {other}")
    if first.variant.qk_norm:
        raise UserError("cannot fuse models with qk_norm: the heads of a layer share its gains")
    layers = [
        Layer(one.mlp + other.mlp, one.groups + other.groups)
        for one, other in zip(a.layers, b.layers, strict=True)
    ]
    shape = Shape(a.hidden + b.hidden, tuple(layers))
    fused = Transformer(shape, first.variant, dtype=first.embedding.dtype, device=first.embedding.device)
    entries = table(shape, first.variant)
    with torch.no_grad():
        for parameter in fused.parameters():
            parameter.zero_()
        for model, before in ((first, None), (second, a)):
            for name, entry in table(model.shape, model.variant).items():
                _put(model.get_parameter(name), entry, before, entries, fused)
    return fused


def _put(
    parameter: nn.Parameter,
    entry: TensorSpec,
    before: Shape | None,
    fused: Mapping[str, TensorSpec],
    model: Transformer,
) -> None:
    """Write a tensor of one of the models where it belongs in the fused one; ``before`` it is the other."""
    values = parameter.detach().view(entry.sizes) * _factor(entry)
    for target in fused.values():
        if (target.role, target.layer) == (entry.role, entry.layer):
            boxes = _boxes(entry, before, target)
            if boxes is not None:
                take, put = boxes
                view: Tensor = model.get_parameter(target.name).view(target.sizes)
                view[index(put)] = values[index(take)].to(view)


def _factor(entry: TensorSpec) -> float:
    """Writers and gains have 1 / sqrt(2), readers its inverse, and the output adds up halves."""
    if entry.role == "output":
        return _SHARE
    factor = 1.0
    for axis in entry.axes:
        if axis == "h":
            factor *= 1 / _SHARE if axis in entry.row.reads else _SHARE
    return factor


def _boxes(entry: TensorSpec, before: Shape | None, target: TensorSpec) -> tuple[Box, Box] | None:
    """The part of ``entry`` that ``target`` holds and where, unless their heads have none in common."""
    take: list[tuple[int, int]] = []
    put: list[tuple[int, int]] = []
    for axis, size in zip(entry.axes, entry.sizes, strict=True):
        if axis == "E":
            assert entry.heads is not None
            assert target.heads is not None
            by = _offset(axis, entry, before)
            start = max(entry.heads.start + by, target.heads.start)
            stop = min(entry.heads.stop + by, target.heads.stop)
            if start >= stop:
                return None
            take.append((start - by - entry.heads.start, stop - by - entry.heads.start))
            put.append((start - target.heads.start, stop - target.heads.start))
        else:
            by = _offset(axis, entry, before)
            take.append((0, size))
            put.append((by, by + size))
    return tuple(take), tuple(put)


def _offset(axis: str, entry: TensorSpec, before: Shape | None) -> int:
    """Where a model's part of an axis begins."""
    if before is None or axis not in ("h", "p", "E"):
        return 0
    if axis == "h":
        return before.hidden
    assert entry.layer is not None
    layer = before.layers[entry.layer]
    return layer.mlp if axis == "p" else layer.head_count
