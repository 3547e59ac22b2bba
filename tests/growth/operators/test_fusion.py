"""Self-fusion's equations against a direct computation, and how its halves part."""

from __future__ import annotations

import copy
from math import sqrt

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowMlp
from nasgrow.growth import fuse, grow
from nasgrow.model import Transformer
from nasgrow.operators import Fusion
from nasgrow.shape import HeadGroup, Layer, Shape, Variant
from nasgrow.verify import LIMITS, PAPER, VARIANTS
from tests.steps import backward, perturb, tokens_for

PLAIN = Fusion(noise=0)
SHAPE = Shape(5, (Layer(3, (HeadGroup(2, 4, 3),)), Layer(4, (HeadGroup(1, 2, 3), HeadGroup(1, 2, 2)))))
"""Unequal layers and heads."""


def side_by_side(times: int) -> list[Expansion]:
    return [
        GrowHidden(5 * times),
        GrowMlp(3 * times, layers=(0,)),
        GrowMlp(4 * times, layers=(1,)),
        AddHeads(2 * times, layers=(0,)),
        *(
            AddHeads(2 * number + 1 + second, layers=(1,), key=2, value=value)
            for number in range(1, times)
            for second, value in enumerate((3, 2))
        ),
    ]


def model_of(variant: Variant = PAPER) -> Transformer:
    model = Transformer(SHAPE, variant, dtype=torch.float64)
    perturb(model)
    return model


def values(model: Transformer) -> dict[str, NDArray[np.float64]]:
    return {name: np.array(p.detach().numpy()) for name, p in model.named_parameters()}


def test_matrices_are_block_diagonal_and_the_output_is_an_average() -> None:
    """[[W, 0], [0, W]], in the scale of a stream of copies x / sqrt(n); and W / n side by side at the end."""
    model = model_of()
    old = values(model)
    grow(model, None, side_by_side(3), operator=PLAIN)
    new = values(model)
    eye = np.eye(3)
    for name, scale in (("layers.0.up", sqrt(3)), ("layers.0.down", 1 / sqrt(3))):
        np.testing.assert_allclose(new[name], np.kron(eye, old[name]) * scale, rtol=1e-14)
    for name, scale in (("layers.0.heads.0.query", sqrt(3)), ("layers.0.heads.0.out", 1 / sqrt(3))):
        np.testing.assert_allclose(new[name], np.kron(eye, old[name]) * scale, rtol=1e-14)
    for name in ("embedding", "positions", "layers.1.mlp_norm", "layers.1.down_bias"):
        times = (1, 3) if old[name].ndim == 2 else 3
        np.testing.assert_allclose(new[name], np.tile(old[name], times) / sqrt(3), rtol=1e-14)
    np.testing.assert_allclose(new["output"], np.tile(old["output"], (3, 1)) / 3 * sqrt(3), rtol=1e-14)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_function_stays_and_gradients_are_those_of_the_grown_model(variant: str) -> None:
    model = model_of(VARIANTS[variant])
    backward(model)
    tokens_bs = tokens_for(PAPER)
    noisy = copy.deepcopy(model)
    with torch.no_grad():
        before = model(tokens_bs)
        growth = grow(model, None, side_by_side(2), operator=PLAIN)
        grow(noisy, None, side_by_side(2), operator=Fusion(noise=1))
        for after in (model(tokens_bs), noisy(tokens_bs)):
            assert float((after - before).abs().max() / before.abs().max()) <= LIMITS["float64"]
    carried = {name: p.grad for name, p in model.named_parameters()}
    backward(model)
    for name, parameter in model.named_parameters():
        found = carried[name]
        assert found is not None
        assert parameter.grad is not None
        plan = growth.plans[name]
        for box in plan.copies:
            part = tuple(slice(start, stop) for start, stop in box.put)
            one, other = (g.view(plan.entry.sizes)[part] for g in (found, parameter.grad))
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, msg=name)


def test_it_is_the_fusion_of_a_model_with_itself() -> None:
    model = model_of()
    fused = fuse(model, model)
    grow(model, None, side_by_side(2), operator=PLAIN)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(fused.get_parameter(name), parameter, rtol=1e-14, atol=0, msg=name)


@pytest.mark.parametrize(
    "event", [[GrowHidden(10)], [*side_by_side(2)[:2], AddHeads(4)]], ids=["hidden", "some"]
)
def test_less_than_a_whole_copy_is_refused(event: list[Expansion]) -> None:
    with pytest.raises(ValueError, match="fusion puts full copies of the model side by side, so hidden, mlp"):
        grow(model_of(), None, event, operator=PLAIN)
