"""Trained models to grow, and all that growing could change about them."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from nasgrow.model import Transformer
from nasgrow.shape import Variant
from nasgrow.verify import BASE, PAPER
from tests.steps import train


def copied(model: Transformer, optimizer: AdamW) -> tuple[Transformer, AdamW]:
    """Both anew, gradients too, which a deep copy of parameters leaves out."""
    twin, its = copy.deepcopy((model, optimizer))
    for parameter, own in zip(model.parameters(), twin.parameters(), strict=True):
        own.grad = None if parameter.grad is None else parameter.grad.clone()
    return twin, its


def trained(variant: Variant = PAPER) -> tuple[Transformer, AdamW]:
    """A model of unequal layers and heads that has made three steps."""
    return copied(*_trained(variant))


@cache
def _trained(variant: Variant) -> tuple[Transformer, AdamW]:
    model = Transformer(BASE, variant, dtype=torch.float64)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, steps=3)
    return model, optimizer


def everything_of(model: Transformer, *optimizers: Optimizer) -> dict[str, Any]:
    """All that growing could change, identities included."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    states = [item for optimizer in optimizers for item in optimizer.state.items()]
    return {
        "shape": model.shape,
        "modules": [id(module) for module in model.modules()],
        "values": {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()},
        "gradients": {name: copy.deepcopy(p.grad) for name, p in model.named_parameters()},
        "groups": [{**g, "params": [id(p) for p in g["params"]]} for g in groups],
        "state": {id(p): copy.deepcopy(state) for p, state in states},
    }


def same(a: Any, b: Any) -> bool:
    """Whether two nested values are equal, tensors to the bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
