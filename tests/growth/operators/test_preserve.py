"""The initialisers of free values."""

from __future__ import annotations

import numpy as np
import torch

from nasgrow.expansions import GrowHidden, GrowMlp
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.operators import Preserve
from nasgrow.shape import Shape
from tests.steps import perturb

SHAPE = Shape.uniform(hidden=24, layers=1, mlp=40, heads=2, key=4, value=4, context=4, vocab=7)


def test_matched_values_are_fresh_ones_with_the_spread_of_the_old() -> None:
    found = []
    for init in ("fresh", "matched"):
        model = Transformer(SHAPE, dtype=torch.float64)
        perturb(model, scale=2.0)
        old = model.get_parameter("layers.0.up").detach().numpy().copy()
        grow(model, None, [GrowMlp(80)], operator=Preserve.model_validate({"init": init}))
        found.append(model.get_parameter("layers.0.up").detach().numpy()[:, 40:])
        assert not model.get_parameter("layers.0.up_bias")[40:].any()
    root = np.sqrt((old**2).mean())
    np.testing.assert_allclose(found[1], found[0] * root * np.sqrt(24), rtol=1e-6)
    assert 0.9 < np.sqrt((found[1] ** 2).mean()) / root < 1.1


def test_a_tensor_that_is_zero_still_gets_fresh_values() -> None:
    model = Transformer(SHAPE)
    with torch.no_grad():
        model.output.zero_()
    grow(model, None, [GrowHidden(30)], operator=Preserve(init="matched"))
    assert model.output[24:].all()
