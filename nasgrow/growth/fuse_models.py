"""Fuse two different models into a wider one (Mazzawi et al., 2023, "Deep Fusion").

The fused model holds both models side by side and returns the average of their logits. Matrices are
block-diagonal, embeddings and gains are concatenated, and the output projection adds one half of each
model's logits.

The two models interact only in RMSNorm, which divides both by the root mean square of the whole residual
stream. Let S_a and S_b be the models' sums of squares at a norm. With the scale used here, the fused norm
divides by the root of (S_a + S_b) / 2 + epsilon; alone, the models would divide by the root of
S_a + epsilon and of S_b + epsilon. So the fused logits are exactly the average

- of the two models with that joint sum in every norm, in general;
- of the two models themselves, if their sums are equal at every norm. This holds for a model and
  itself, or a model that is equal up to the order and the signs of its hidden units.

Models of the same size that were trained alike have similar sums, so the result is close to the average.
(If hidden sizes differ, the scale is the one for equal means of squares.)
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
"""The factor on each model's residual stream: their joint sum of squares is the mean of the two sums."""


def fuse(first: Transformer, second: Transformer) -> Transformer:
    """Return a new model that holds both models and whose logits are about the average of theirs.

    The module's docstring says when the average is exact. Hidden sizes add up, and in each layer MLP
    widths and heads do. The fused model has the dtype and device of ``first``, and no optimizer state.
    Both given models are unchanged.

    Raises:
        UserError: The models differ in variant, vocabulary, context or number of layers, or have
            ``qk_norm``.
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
    """Copy a tensor of one model into the fused model.

    Args:
        parameter: The tensor.
        entry: Its entry in the table of the model that it comes from.
        before: The shape of the model that lies before this one in the fused model; None for the first.
        fused: The table of the fused model.
        model: The fused model.
    """
    values = parameter.detach().view(entry.sizes) * _factor(entry)
    for target in fused.values():
        if (target.role, target.layer) == (entry.role, entry.layer):
            boxes = _boxes(entry, before, target)
            if boxes is not None:
                take, put = boxes
                view: Tensor = model.get_parameter(target.name).view(target.sizes)
                view[index(put)] = values[index(take)].to(view)


def _factor(entry: TensorSpec) -> float:
    """Return the factor of a tensor's values in the fused model.

    It is 1 / sqrt(2) for gains and tensors that write the residual stream, sqrt(2) for tensors that
    read it, and for the output sqrt(2) / 2, because it averages.
    """
    if entry.role == "output":
        return _SHARE
    factor = 1.0
    for axis in entry.axes:
        if axis == "h":
            factor *= 1 / _SHARE if axis in entry.row.reads else _SHARE
    return factor


def _boxes(entry: TensorSpec, before: Shape | None, target: TensorSpec) -> tuple[Box, Box] | None:
    """Return the box of ``entry`` that ``target`` takes and the box where it goes.

    None if the two tensors have no head in common.
    """
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
    """Return where a model's units begin on an axis of the fused model: after those of ``before``.

    It is 0 for the first model, and on axes whose sizes do not add up.
    """
    if before is None or axis not in ("h", "p", "E"):
        return 0
    if axis == "h":
        return before.hidden
    assert entry.layer is not None
    layer = before.layers[entry.layer]
    return layer.mlp if axis == "p" else layer.head_count
