"""HyperCloning's equations against a direct computation, and noise that cancels."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowMlp
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.operators import HyperClone
from nasgrow.shape import Shape, Variant
from nasgrow.verify import PAPER
from tests.steps import perturb

SHAPE = Shape.uniform(hidden=6, layers=2, mlp=5, heads=2, key=4, value=3)
TRIPLED: list[Expansion] = [GrowHidden(18), GrowMlp(15), AddHeads(6)]


def model_of(shape: Shape = SHAPE, variant: Variant = PAPER) -> Transformer:
    model = Transformer(shape, variant, dtype=torch.float64)
    perturb(model)
    return model


def values(model: Transformer) -> dict[str, NDArray[np.float64]]:
    return {name: np.array(p.detach().numpy()) for name, p in model.named_parameters()}


def test_matrices_are_tiled_and_divided() -> None:
    """[W W W; ...] / n, in the scale of a stream of copies x / sqrt(n)."""
    model = model_of()
    old = values(model)
    grow(model, None, TRIPLED, operator=HyperClone(noise=0))
    new = values(model)
    scale = {"embedding": 1 / sqrt(3), "output": 1 / sqrt(3), "layers.1.mlp_norm": 1 / sqrt(3)}
    scale |= {"layers.1.up": 1 / sqrt(3), "layers.1.down": 1 / 3 / sqrt(3), "layers.1.up_bias": 1}
    for name, factor in scale.items():
        times = [after // before for before, after in zip(old[name].shape, new[name].shape, strict=True)]
        assert 3 in times
        np.testing.assert_allclose(new[name], np.tile(old[name], times) * factor, rtol=1e-13)
    query, out = "layers.1.heads.0.query", "layers.1.heads.0.out"
    np.testing.assert_allclose(new[query], np.tile(old[query], (3, 3)) / sqrt(3), rtol=1e-13)
    np.testing.assert_allclose(new[out], np.tile(old[out], (3, 3)) / 3 / sqrt(3), rtol=1e-13)


@pytest.mark.parametrize("name", ["layers.0.up", "layers.0.down", "layers.0.heads.0.key", "output"])
@pytest.mark.parametrize("n", [2, 3])
def test_noise_adds_up_to_zero_over_the_copies_of_each_input(name: str, n: int) -> None:
    shape = Shape.uniform(hidden=6, layers=1, mlp=50, heads=2, key=24, value=24)
    event: list[Expansion] = [GrowHidden(6 * n), GrowMlp(50 * n), AddHeads(2 * n)]
    plain, noisy = model_of(shape), model_of(shape)
    grow(plain, None, event, operator=HyperClone(noise=0))
    grow(noisy, None, event, operator=HyperClone(noise=0.2))
    tiles = values(plain)[name]
    noise = values(noisy)[name] - tiles
    copies = noise.reshape(n, -1, noise.shape[1])
    assert abs(copies.sum(0)).max() <= 1e-13 * abs(noise).max()
    assert 0.18 < sqrt((noise**2).mean() / (tiles**2).mean()) < 0.22
    if name != "output":
        outputs = noise.reshape(len(noise), n, -1)
        assert (outputs[:, 0] != outputs[:, 1]).all()


def test_other_factors_are_refused() -> None:
    with pytest.raises(ValueError, match="hyperclone grows hidden by integer factors, not from 6 to 9"):
        grow(model_of(), None, [GrowHidden(9)], operator=HyperClone())
