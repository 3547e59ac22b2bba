"""Staged training's equations against a direct computation, its rule for optimizer state included."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.optim import AdamW

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowMlp, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.operators import Staged
from nasgrow.shape import Shape, Variant
from nasgrow.verify import LIMITS, PAPER, VARIANTS
from tests.steps import perturb, tokens_for, train

SHAPE = Shape.uniform(hidden=5, layers=2, mlp=3, heads=2, key=4, value=3)
DOUBLED: list[Expansion] = [GrowHidden(10), GrowMlp(6), AddHeads(4)]


def trained(variant: Variant = PAPER) -> tuple[Transformer, AdamW]:
    model = Transformer(SHAPE, variant, dtype=torch.float64)
    perturb(model)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, steps=2)
    return model, optimizer


def arrays(model: Transformer, optimizer: AdamW, key: str) -> dict[str, NDArray[np.float64]]:
    return {name: optimizer.state[p][key].numpy().copy() for name, p in model.named_parameters()}


SCALES = {"layers.0.up": sqrt(2), "layers.0.down": 1 / sqrt(2), "embedding": 1 / sqrt(2)}
"""What the stream's scale makes of weights that the paper leaves as they are."""


def test_width_is_block_diagonal() -> None:
    """[[W, 0], [0, W]] times what the stream's scale makes of it; the output is an average."""
    model, _ = trained()
    old = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    grow(model, None, DOUBLED, operator=Staged(noise=0))
    new = {name: p.detach().numpy() for name, p in model.named_parameters()}
    for name in ("layers.0.up", "layers.0.down"):
        np.testing.assert_allclose(new[name], np.kron(np.eye(2), old[name]) * SCALES[name], rtol=1e-14)
    for role, scale in (("query", sqrt(2)), ("key", sqrt(2)), ("value", sqrt(2)), ("out", 1 / sqrt(2))):
        name = f"layers.1.heads.0.{role}"
        np.testing.assert_allclose(new[name], np.kron(np.eye(2), old[name]) * scale, rtol=1e-14)
    np.testing.assert_allclose(new["embedding"], np.tile(old["embedding"], 2) / sqrt(2), rtol=1e-14)
    np.testing.assert_allclose(new["output"], np.tile(old["output"], (2, 1)) / 2 * sqrt(2), rtol=1e-14)


@pytest.mark.parametrize(("key", "power", "share"), [("exp_avg", 1, 1 / 2), ("exp_avg_sq", 2, 1 / 4)])
def test_moments_are_halved_and_quartered_as_the_paper_has_it(key: str, power: int, share: float) -> None:
    """Up to the scale of the stream, which moments follow by its inverse; those of the final norm stay."""
    model, optimizer = trained(replace(PAPER, final_norm=True))
    old = arrays(model, optimizer, key)
    grow(model, optimizer, DOUBLED, operator=Staged())
    new = arrays(model, optimizer, key)
    for name in ("layers.0.up", "layers.0.down"):
        expected = np.kron(np.eye(2), old[name]) * share / SCALES[name] ** power
        np.testing.assert_allclose(new[name], expected, rtol=1e-12)
    expected = np.tile(old["embedding"], 2) * share / SCALES["embedding"] ** power
    np.testing.assert_allclose(new["embedding"], expected, rtol=1e-12)
    # The paper's final gain is g / 2, ours g / sqrt(2): its moments stay, ours are divided by that sqrt(2).
    expected = np.tile(old["final_norm"], 2) / sqrt(2) ** power
    np.testing.assert_allclose(new["final_norm"], expected, rtol=1e-12)
    np.testing.assert_allclose(
        new["layers.0.up_bias"], np.tile(old["layers.0.up_bias"], 2) * share, rtol=1e-12
    )


def test_every_layer_is_followed_by_a_closed_copy_of_itself() -> None:
    model, optimizer = trained()
    old = {name: p.detach().clone() for name, p in model.named_parameters()}
    history = {name: optimizer.state[p]["exp_avg"].clone() for name, p in model.named_parameters()}
    grow(model, optimizer, [InsertLayers((2, 2))], operator=Staged())
    for name, parameter in model.named_parameters():
        _, _, rest = name.partition("layers.")
        number, _, leaf = rest.partition(".")
        if not rest:
            continue
        origin = f"layers.{int(number) // 2}.{leaf}"
        if int(number) % 2 and leaf.split(".")[-1] in ("out", "down", "down_bias"):
            assert not parameter.any(), name
        else:
            assert torch.equal(parameter, old[origin]), name
            assert torch.equal(optimizer.state[parameter]["exp_avg"], history[origin]), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_four_times_at_once_is_twice_two(variant: str) -> None:
    models = [trained(VARIANTS[variant])[0] for _ in range(2)]
    with torch.no_grad():
        before = models[0](tokens_for(PAPER))
    more: list[Expansion] = [GrowHidden(20), GrowMlp(12), AddHeads(8), InsertLayers((2,) * 6)]
    grow(models[0], None, more, operator=Staged(noise=0))
    for event in ([InsertLayers((0, 2)), *DOUBLED], [InsertLayers((4,) * 4), *more[:3]]):
        grow(models[1], None, event, operator=Staged(noise=0))
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=0)
    with torch.no_grad():
        change = float((models[0](tokens_for(PAPER)) - before).abs().max() / before.abs().max())
    assert change <= LIMITS["float64"]


def test_what_is_not_a_whole_factor_is_refused() -> None:
    model, _ = trained()
    with pytest.raises(ValueError, match="operator staged grows layers by integer factors, not from 2 to 3"):
        grow(model, None, [InsertLayers((1,))], operator=Staged())
    with pytest.raises(ValueError, match="staged puts full copies of the model side by side"):
        grow(model, None, [GrowMlp(6)], operator=Staged())
