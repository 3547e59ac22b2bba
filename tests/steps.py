"""A little training, for tests that need weights and moments that are not fresh."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.optim import Optimizer

from nasgrow.model import Transformer
from nasgrow.shape import Variant


def tokens_for(variant: Variant, seed: int = 0, batch: int = 3) -> Tensor:
    """Random tokens that fill the context."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(variant.vocab, (batch, variant.context), generator=generator)


def perturb(model: Transformer, scale: float = 0.3, seed: int = 0) -> None:
    """Move every parameter, constants too, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter), alpha=scale)


def backward(model: Transformer, seed: int = 0, batch: int = 3) -> float:
    """Gradients of predicting a fixed function of each token; returns the loss."""
    tokens_bs = tokens_for(model.variant, seed, batch)
    targets_bs = (tokens_bs * 5 + 1) % model.variant.vocab
    model.zero_grad()
    loss = F.cross_entropy(model(tokens_bs).flatten(0, 1), targets_bs.flatten())
    loss.backward()
    return loss.item()


def train(
    model: Transformer,
    optimizers: Optimizer | Sequence[Optimizer],
    steps: int,
    first: int = 0,
    batch: int = 3,
) -> list[float]:
    """Train for some steps, on batches ``first``, ``first + 1``, ...; return the losses."""
    chosen = [optimizers] if isinstance(optimizers, Optimizer) else optimizers
    losses = []
    for step in range(first, first + steps):
        losses.append(backward(model, step, batch))
        for optimizer in chosen:
            optimizer.step()
    return losses
