"""The control that keeps the values of trained layers and loses their order."""

from __future__ import annotations

import torch
from torch.optim import AdamW

from nasgrow.expansions import GrowMlp, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.operators import Shuffled
from nasgrow.shape import Shape
from nasgrow.verify import PAPER
from tests.steps import train


def test_layers_keep_their_values_in_another_order_and_embeddings_stay() -> None:
    model = Transformer(Shape.uniform(hidden=8, layers=1, mlp=12, heads=2, key=4, value=6), PAPER)
    train(model, AdamW(model.parameters(), lr=1e-2), steps=3)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    grow(model, None, [GrowMlp(16), InsertLayers((1, 1))], operator=Shuffled())
    after = dict(model.named_parameters())
    matrices = [name for name, old in before.items() if old.ndim > 1]
    assert any(".0." in name for name in matrices)
    for name in matrices:
        old, new = before[name], after[name].detach()
        if ".0." in name:
            kept = new[tuple(slice(size) for size in old.shape)]
            assert not torch.equal(kept, old)
            torch.testing.assert_close(kept.flatten().sort()[0], old.flatten().sort()[0])
        else:
            assert torch.equal(new, old)
