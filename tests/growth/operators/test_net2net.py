"""Net2Net's equations against a direct computation, and why each factor is what it is."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.optim import SGD

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues
from nasgrow.growth import grow
from nasgrow.growth.plan import in_turn
from nasgrow.model import Transformer
from nasgrow.operators import Net2Net
from nasgrow.shape import HeadGroup, Layer, Shape, Variant
from nasgrow.verify import BASE, LIMITS, PAPER, VARIANTS
from tests.steps import backward, perturb, tokens_for, train

Array = NDArray[np.float64]
EXACT = Net2Net(noise=0)
SHAPE = Shape(5, (Layer(3, (HeadGroup(2, 4, 3),)),))


def model_of(shape: Shape = SHAPE, variant: Variant = PAPER) -> Transformer:
    model = Transformer(shape, variant, dtype=torch.float64)
    perturb(model)
    return model


def values(model: Transformer, name: str) -> Array:
    return np.array(model.get_parameter(name).detach().numpy())


def grown(expansion: Expansion, *names: str) -> dict[str, tuple[Array, Array]]:
    """Tensors before and after."""
    model = model_of()
    before = {name: values(model, name) for name in names}
    grow(model, None, [expansion], operator=EXACT)
    return {name: (before[name], values(model, name)) for name in names}


def test_mlp_units_are_copied_in_turn_and_what_reads_them_is_divided() -> None:
    """Net2Net: U[:, j] = W[:, g(j)], and in the next layer V[j, :] = W[g(j), :] / |{i: g(i) = g(j)}|."""
    found = grown(GrowMlp(8), "layers.0.up", "layers.0.up_bias", "layers.0.down", "layers.0.down_bias")
    g = np.array([0, 1, 2, 0, 1, 2, 0, 1])
    copies = np.array([3, 3, 2])[g]
    old, new = found["layers.0.up"]
    assert np.array_equal(new, old[:, g])
    old, new = found["layers.0.up_bias"]
    assert np.array_equal(new, old[g])
    old, new = found["layers.0.down"]
    np.testing.assert_allclose(new, old[g] / copies[:, None], rtol=1e-15)
    old, new = found["layers.0.down_bias"]
    assert np.array_equal(new, old)


def test_the_residual_stream_is_shared_by_the_root_of_its_copies() -> None:
    """x^_j = x_g(j) / sqrt(m): the sum of squares stays; gains times sqrt(h / h^) as ever."""
    names = ("embedding", "positions", "output", "layers.0.up", "layers.0.down", "layers.0.mlp_norm")
    found = grown(GrowHidden(8), *names)
    g = np.array([0, 1, 2, 3, 4, 0, 1, 2])
    root = np.sqrt(np.array([2, 2, 2, 1, 1])[g])
    for name in ("embedding", "positions", "layers.0.down"):
        old, new = found[name]
        np.testing.assert_allclose(new, old[:, g] / root, rtol=1e-14)
        np.testing.assert_allclose((new**2).sum(1), (old**2).sum(1), rtol=1e-13)
    for name in ("output", "layers.0.up"):
        old, new = found[name]
        np.testing.assert_allclose(new, old[g] / root[:, None], rtol=1e-14)
    old, new = found["layers.0.mlp_norm"]
    np.testing.assert_allclose(new, old[g] * sqrt(5 / 8), rtol=1e-14)


def test_scores_of_copied_keys_are_the_old_ones() -> None:
    """Scores are q k / sqrt(k^): the query is copied, the key divided by its copies, times the root."""
    query, key = "layers.0.heads.0.query", "layers.0.heads.0.key"
    found = grown(GrowKeys(6), query, key)
    g = np.array([0, 1, 2, 3, 0, 1])
    copies = np.array([2, 2, 1, 1])[g]
    (q, new_q), (k, new_k) = ([t.reshape(5, 2, -1) for t in found[name]] for name in (query, key))
    np.testing.assert_allclose(new_q, q[..., g], rtol=1e-15)
    np.testing.assert_allclose(new_k, k[..., g] / copies * sqrt(6 / 4), rtol=1e-14)
    scores = np.einsum("hek,iek->ehi", q, k) / sqrt(4)
    np.testing.assert_allclose(np.einsum("hek,iek->ehi", new_q, new_k) / sqrt(6), scores, rtol=1e-12)


def test_heads_and_values_are_copied_and_the_output_divided() -> None:
    value, out = "layers.0.heads.0.value", "layers.0.heads.0.out"
    found = grown(AddHeads(3), value, out)
    g = np.array([0, 1, 0])
    (v, new_v), (o, new_o) = found[value], found[out]
    assert np.array_equal(new_v.reshape(5, 3, 3), v.reshape(5, 2, 3)[:, g])
    divided = o.reshape(2, 3, 5)[g] / np.array([2, 1, 2])[:, None, None]
    np.testing.assert_allclose(new_o.reshape(3, 3, 5), divided, rtol=1e-15)
    found = grown(GrowValues(4), value, out)
    g = np.array([0, 1, 2, 0])
    (v, new_v), (o, new_o) = found[value], found[out]
    assert np.array_equal(new_v.reshape(5, 2, 4), v.reshape(5, 2, 3)[..., g])
    divided = o.reshape(2, 3, 5)[:, g] / np.array([2, 1, 1, 2])[:, None]
    np.testing.assert_allclose(new_o.reshape(2, 4, 5), divided, rtol=1e-15)


ODD: list[Expansion] = [GrowHidden(31), GrowMlp(45), GrowValues(11), AddHeads(7)]
"""Sizes that are no multiples, of unequal layers and heads."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_sizes_are_exact_and_gradients_and_moments_are_those_of_the_grown_model(variant: str) -> None:
    """What the copies carry over is what the grown model itself would compute."""
    kind = VARIANTS[variant]
    event = ODD if kind.positions == "rope" else [*ODD, GrowKeys(13)]
    model = model_of(BASE, kind)
    optimizer = SGD(model.parameters(), lr=0.0, momentum=0.9)
    train(model, optimizer, steps=1)
    tokens_bs = tokens_for(PAPER)
    with torch.no_grad():
        before = model(tokens_bs)
        grow(model, optimizer, event, operator=EXACT)
        after = model(tokens_bs)
    assert float((after - before).abs().max() / before.abs().max()) <= LIMITS["float64"]
    carried = {name: (p.grad, optimizer.state[p]["momentum_buffer"]) for name, p in model.named_parameters()}
    backward(model)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        for found in carried[name]:
            assert found is not None
            torch.testing.assert_close(found, parameter.grad, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize(("epsilon", "exact"), [(1e-16, True), (0.5, False)])
def test_plain_copies_of_the_stream_leave_a_trace_of_epsilon(
    epsilon: float, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies without the root, gains made up for that: the sum has twice x² and once epsilon."""
    monkeypatch.setattr("nasgrow.growth.operators.net2net.in_turn", lambda axis, write=None: in_turn(axis))
    model = model_of(variant=replace(PAPER, final_norm=True, epsilon=epsilon))
    tokens_bs = tokens_for(PAPER)
    with torch.no_grad():
        before = model(tokens_bs)
        grow(model, None, [GrowHidden(10)], operator=EXACT)
        change = float((model(tokens_bs) - before).abs().max() / before.abs().max())
    assert change <= LIMITS["float64"] if exact else change > 1e-3


def test_noise_has_its_size_and_falls_on_second_copies_alone() -> None:
    shape = Shape.uniform(hidden=40, layers=1, mlp=50, heads=2, key=4, value=4)
    model = model_of(shape)
    old = values(model, "layers.0.up")
    grow(model, None, [GrowMlp(100)], operator=Net2Net(noise=0.1))
    new = values(model, "layers.0.up")
    assert np.array_equal(new[:, :50], old)
    ratio = (new[:, 50:] - old).std() / np.sqrt((old**2).mean())
    assert 0.09 < ratio < 0.11
    assert np.array_equal(values(model, "layers.0.up_bias")[:50], values(model, "layers.0.up_bias")[50:])


def test_keys_under_rope_are_refused() -> None:
    model = model_of(SHAPE, replace(PAPER, positions="rope"))
    with pytest.raises(ValueError, match="operator net2net cannot grow key under rope"):
        grow(model, None, [GrowKeys(6)], operator=EXACT)


def test_a_head_that_no_old_one_fits_into_is_refused() -> None:
    with pytest.raises(ValueError, match=r"net2net: a new head of layer 0 .* none fits into key 2, value 3"):
        grow(model_of(), None, [AddHeads(3, key=2)], operator=EXACT)
