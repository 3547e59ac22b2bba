"""LEMON's equations against a direct computation, and that copies part without noise."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.optim import SGD, AdamW, Optimizer

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.operators import Lemon
from nasgrow.shape import HeadGroup, Layer, Shape, Variant
from nasgrow.verify import BASE, LIMITS, PAPER, VARIANTS
from tests.steps import backward, perturb, tokens_for, train

Array = NDArray[np.float64]
SHAPE = Shape(5, (Layer(3, (HeadGroup(2, 4, 3),)),))


def model_of(shape: Shape = SHAPE, variant: Variant = PAPER) -> Transformer:
    model = Transformer(shape, variant, dtype=torch.float64)
    perturb(model)
    return model


def grown(expansion: Expansion, *names: str) -> list[tuple[Array, Array]]:
    """Tensors before and after."""
    model = model_of()
    before = [np.array(model.get_parameter(name).detach().numpy()) for name in names]
    grow(model, None, [expansion], operator=Lemon())
    after = [np.array(model.get_parameter(name).detach().numpy()) for name in names]
    return list(zip(before, after, strict=True))


def test_what_leaves_a_unit_is_split_unevenly_among_its_copies() -> None:
    """Shares 3/6, 2/6, 1/6 of three copies, 2/3 and 1/3 of two."""
    (up, new_up), (down, new_down) = grown(GrowMlp(8), "layers.0.up", "layers.0.down")
    g = np.array([0, 1, 2, 0, 1, 2, 0, 1])
    shares = np.array([3 / 6, 3 / 6, 2 / 3, 2 / 6, 2 / 6, 1 / 3, 1 / 6, 1 / 6])
    assert np.array_equal(new_up, up[:, g])
    np.testing.assert_allclose(new_down, down[g] * shares[:, None], rtol=1e-14)
    ((out, new_out),) = grown(AddHeads(3), "layers.0.heads.0.out")
    split = out.reshape(2, 3, 5)[[0, 1, 0]] * np.array([2 / 3, 1, 1 / 3])[:, None, None]
    np.testing.assert_allclose(new_out.reshape(3, 3, 5), split, rtol=1e-14)
    (q, new_q), (k, new_k) = grown(GrowKeys(6), "layers.0.heads.0.query", "layers.0.heads.0.key")
    g, shares = np.array([0, 1, 2, 3, 0, 1]), np.array([2 / 3, 2 / 3, 1, 1, 1 / 3, 1 / 3])
    assert np.array_equal(new_q.reshape(5, 2, 6), q.reshape(5, 2, 4)[..., g])
    split = k.reshape(5, 2, 4)[..., g] * shares * sqrt(6 / 4)
    np.testing.assert_allclose(new_k.reshape(5, 2, 6), split, rtol=1e-14)


def test_the_stream_holds_whole_copies_and_zeros() -> None:
    """x^ = (x, x, 0) / sqrt(2), read by 2/3 and 1/3 of W sqrt(2): the norm sees the old sum of squares."""
    found = grown(GrowHidden(12), "embedding", "layers.0.down", "layers.0.up", "layers.0.mlp_norm")
    shares = np.repeat([2 / 3, 1 / 3], 5)
    for old, new in found[:2]:
        np.testing.assert_allclose(new[:, :10], np.tile(old, 2) / sqrt(2), rtol=1e-14)
        assert not new[:, 10:].any()
        np.testing.assert_allclose((new**2).sum(1), (old**2).sum(1), rtol=1e-13)
    (up, new_up), (gain, new_gain) = found[2:]
    np.testing.assert_allclose(new_up[:10], np.tile(up, (2, 1)) * shares[:, None] * sqrt(2), rtol=1e-14)
    assert new_up[10:].all()
    np.testing.assert_allclose(new_gain[:10], np.tile(gain, 2) * sqrt(5 / 12), rtol=1e-14)


ODD: list[Expansion] = [GrowHidden(77), GrowMlp(75), GrowValues(19), AddHeads(7)]
"""Sizes that are no multiples, of unequal layers and heads; more than two copies of some units."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_sizes_are_exact_and_gradients_are_those_of_the_grown_model(variant: str) -> None:
    """All but those of what writes the stream, and of what a tied embedding reads: they go by no shares."""
    kind = VARIANTS[variant]
    event = ODD if kind.positions == "rope" else [*ODD, GrowKeys(13)]
    model = model_of(BASE, kind)
    backward(model)
    tokens_bs = tokens_for(PAPER)
    with torch.no_grad():
        before = model(tokens_bs)
        growth = grow(model, None, [*event, InsertLayers((1,))], operator=Lemon())
        after = model(tokens_bs)
    assert float((after - before).abs().max() / before.abs().max()) <= LIMITS["float64"]
    carried = {name: p.grad for name, p in model.named_parameters()}
    backward(model)
    writers = {"embedding", "positions", "out", "down", "down_bias"}
    writers |= {"attention_norm", "mlp_norm"} if kind.norm == "after" else set()
    writers |= {"final_norm"} if kind.tied else set()
    for name, parameter in model.named_parameters():
        found = carried[name]
        if found is not None and name.split(".")[-1] not in writers:
            assert parameter.grad is not None
            for copy in growth.plans[name].copies:
                part = tuple(slice(start, stop) for start, stop in copy.put)
                sizes = growth.plans[name].entry.sizes
                torch.testing.assert_close(
                    found.view(sizes)[part], parameter.grad.view(sizes)[part], rtol=1e-9, atol=1e-12, msg=name
                )


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_copies_part_without_noise(kind: type[Optimizer]) -> None:
    model = model_of()
    optimizer = kind(model.parameters(), lr=0.01)  # type: ignore[call-arg]
    train(model, optimizer, steps=2)
    grow(model, optimizer, [GrowMlp(6), GrowHidden(10)], operator=Lemon())
    train(model, optimizer, steps=5, first=2)
    up = model.get_parameter("layers.0.up").detach().numpy()
    embedding = model.get_parameter("embedding").detach().numpy()
    assert np.abs(up[:, :3] - up[:, 3:]).max() > 1e-4
    assert np.abs(embedding[:, :5] - embedding[:, 5:]).max() > 1e-4
