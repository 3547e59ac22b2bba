"""The fusion of two models: what its logits are exactly, and what they are nearly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

from nasgrow.growth import fuse
from nasgrow.model import Block, Transformer
from nasgrow.params import table
from nasgrow.shape import HeadGroup, Layer, Shape, Variant
from nasgrow.verify import LIMITS, PAPER, VARIANTS
from tests.steps import perturb, tokens_for, train

A = Shape(6, (Layer(4, (HeadGroup(2, 4, 3),)), Layer(3, (HeadGroup(1, 2, 3), HeadGroup(1, 4, 3)))))
B = Shape(9, (Layer(5, (HeadGroup(1, 4, 3),)), Layer(7, (HeadGroup(2, 4, 3),))))


def model_of(shape: Shape, variant: Variant, seed: int = 0) -> Transformer:
    model = Transformer(shape, variant, seed=seed, dtype=torch.float64)
    perturb(model, seed=seed)
    return model


def change(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def in_lockstep(models: tuple[Transformer, Transformer], tokens_bs: Tensor) -> Tensor:
    """The average of two models whose norms divide by the mean of their sums of squares."""
    variant = models[0].variant
    half = sqrt(sum(model.shape.hidden for model in models) / 2)

    def normed(x: Sequence[Tensor], gains: Sequence[Tensor]) -> list[Tensor]:
        total = torch.stack([(x_th**2).sum(-1, keepdim=True) for x_th in x]).sum(0)
        return [
            x_th * gain_h * half / (total / 2 + variant.epsilon).sqrt()
            for x_th, gain_h in zip(x, gains, strict=True)
        ]

    x = [model.embedding[tokens_bs] for model in models]
    if variant.positions == "learned":
        x = [x_bsh + model.positions[: tokens_bs.shape[1]] for x_bsh, model in zip(x, models, strict=True)]
    x = [x_bsh.flatten(0, 1) for x_bsh in x]
    rope = variant.positions == "rope"
    turns = [model._turns()[: tokens_bs.shape[1]] if rope else None for model in models]
    batch = len(tokens_bs)
    for pair in zip(*(model.layers for model in models), strict=True):
        blocks = [block for block in pair if isinstance(block, Block)]
        gains = [block.attention_norm for block in blocks], [block.mlp_norm for block in blocks]
        if variant.norm == "before":
            y = normed(x, gains[0])
            x = [b.attention(y[i], x[i], batch, turns[i], None) for i, b in enumerate(blocks)]
            y = normed(x, gains[1])
            x = [b.mlp(y[i], x[i]) for i, b in enumerate(blocks)]
        else:
            y = normed(
                [b.attention(x[i], None, batch, turns[i], None) for i, b in enumerate(blocks)], gains[0]
            )
            x = [x[i] + y[i] for i in (0, 1)]
            y = normed([b.mlp(x[i], None) for i, b in enumerate(blocks)], gains[1])
            x = [x[i] + y[i] for i in (0, 1)]
    if variant.final_norm:
        x = normed(x, [model.final_norm for model in models])
    heads = [model.embedding.T if variant.tied else model.output for model in models]
    return ((x[0] @ heads[0] + x[1] @ heads[1]) / 2).view(*tokens_bs.shape, -1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_fused_logits_are_the_average_of_two_models_with_joint_norms(variant: str) -> None:
    kind = VARIANTS[variant]
    models = model_of(A, kind), model_of(B, kind, seed=1)
    tokens_bs = tokens_for(PAPER)
    with torch.no_grad():
        fused = fuse(*models)
        assert change(fused(tokens_bs), in_lockstep(models, tokens_bs)) <= LIMITS["float64"]
    assert fused.shape.hidden == 15
    assert fused.shape.layers[0].heads == ((4, 3),) * 3
    assert fused.shape.layers[1].heads == ((2, 3), (4, 3), (4, 3), (4, 3))


def turned(model: Transformer) -> Transformer:
    """The same function with its hidden units in another order and with other signs."""
    other = Transformer(model.shape, model.variant, dtype=torch.float64)
    order = torch.randperm(model.shape.hidden, generator=torch.Generator().manual_seed(0))
    signs = torch.where(order % 2 == 0, 1.0, -1.0).double()
    with torch.no_grad():
        for name, entry in table(model.shape, model.variant).items():
            values = model.get_parameter(name).view(entry.sizes)
            for axis, letter in enumerate(entry.axes):
                if letter == "h":
                    values = values.index_select(axis, order)
                    if not entry.row.diagonal:
                        values = (values.movedim(axis, -1) * signs).movedim(-1, axis)
            other.get_parameter(name).copy_(values.reshape(entry.stored))
    return other


@pytest.mark.parametrize("variant", VARIANTS)
def test_models_with_equal_sums_of_squares_give_the_average_exactly(variant: str) -> None:
    model = model_of(A, VARIANTS[variant])
    other = turned(model)
    tokens_bs = tokens_for(PAPER)
    with torch.no_grad():
        average = (model(tokens_bs) + other(tokens_bs)) / 2
        assert change(other(tokens_bs), model(tokens_bs)) <= LIMITS["float64"]
        assert change(fuse(model, other)(tokens_bs), average) <= LIMITS["float64"]


def test_models_that_were_trained_alike_give_nearly_the_average() -> None:
    shape = Shape.uniform(hidden=32, layers=2, mlp=32, heads=2, key=8, value=8)
    models = []
    for seed in (0, 1):
        model = Transformer(shape, VARIANTS["modern"], seed=seed, dtype=torch.float64)
        train(model, AdamW(model.parameters(), lr=1e-2), steps=30)
        models.append(model)
    tokens_bs = tokens_for(PAPER, seed=99)
    with torch.no_grad():
        average = (models[0](tokens_bs) + models[1](tokens_bs)) / 2
        found = change(fuse(*models)(tokens_bs), average)
    assert LIMITS["float64"] < found < 0.3  # 0.18 as measured


def test_neither_model_is_changed_and_the_fused_one_trains() -> None:
    models = model_of(A, PAPER), model_of(B, PAPER)
    before = [{name: p.clone() for name, p in model.named_parameters()} for model in models]
    fused = fuse(*models)
    losses = train(fused, AdamW(fused.parameters(), lr=1e-2), steps=20)
    assert sum(losses[-3:]) < sum(losses[:3])
    for model, values in zip(models, before, strict=True):
        assert all(torch.equal(p, values[name]) for name, p in model.named_parameters())


def test_models_that_do_not_fit_are_refused() -> None:
    model = model_of(A, PAPER)
    shallow = Shape(6, A.layers[:1])
    with pytest.raises(ValueError, match="cannot fuse models that differ in number of layers: 2 and 1"):
        fuse(model, model_of(shallow, PAPER))
    with pytest.raises(ValueError, match="differ in vocabulary: 29 and 8"):
        fuse(model, model_of(A, replace(PAPER, vocab=8)))
    with pytest.raises(ValueError, match="differ in variant"):
        fuse(model, model_of(A, replace(PAPER, tied=True)))
