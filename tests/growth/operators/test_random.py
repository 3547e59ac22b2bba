"""New layers with the values of a fresh model."""

from __future__ import annotations

import torch

from nasgrow.expansions import InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.operators import Random
from nasgrow.shape import Shape
from nasgrow.verify import PAPER


def test_a_new_layer_has_the_scale_of_a_fresh_one_and_old_layers_stay() -> None:
    model = Transformer(Shape.uniform(hidden=32, layers=1, mlp=64, heads=2, key=16, value=16), PAPER)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    grow(model, None, [InsertLayers((1,))], operator=Random())
    after = dict(model.named_parameters())
    for name, old in before.items():
        assert torch.equal(after[name], old)
        if name.startswith("layers.0.") and old.any():
            new = after[name.replace("layers.0.", "layers.1.")]
            torch.testing.assert_close(new.std(), old.std(), rtol=0.2, atol=1e-6)
            assert old.ndim == 1 or not torch.equal(new, old)
