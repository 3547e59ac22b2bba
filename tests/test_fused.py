"""Norm, MLP and loss by hand give the values and gradients of the plain formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from nasgrow import fused
from nasgrow.model import Transformer
from nasgrow.shape import Shape
from nasgrow.verify import PAPER
from tests.steps import tokens_for

Function = Callable[..., Tensor]

SHAPE = Shape.uniform(hidden=8, layers=2, mlp=16, heads=2, key=4, value=4)


def plain_norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt((x.square().sum(-1, keepdim=True) + epsilon) / x.shape[-1]) * gain


def plain_mlp(
    onto: Tensor, x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor
) -> Tensor:
    return onto + F.relu(x @ up + up_bias) @ down + down_bias


def drawn(*sizes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, dtype=torch.float64, generator=generator).requires_grad_() for size in sizes]


def values_and_gradients(function: Function, inputs: list[Tensor], *rest: object) -> list[Tensor]:
    """The output, and gradients along a fixed direction."""
    output = function(*inputs, *rest)
    along = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view_as(output)
    return [output.detach(), *torch.autograd.grad(output, inputs, along)]


def assert_equal(ours: list[Tensor], plain: list[Tensor]) -> None:
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("tokens", "hidden"), [(1, 1), (5, 3), (33, 64)])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_norm(tokens: int, hidden: int, scale: float) -> None:
    x, gain = drawn((tokens, hidden), (hidden,))
    inputs = [(scale * x).detach().requires_grad_(), gain]
    assert_equal(
        values_and_gradients(fused.rms_norm, inputs, 1e-4),
        values_and_gradients(plain_norm, inputs, 1e-4),
    )


@pytest.mark.parametrize(("tokens", "hidden", "mlp"), [(1, 1, 1), (5, 3, 7), (33, 16, 64)])
def test_mlp(tokens: int, hidden: int, mlp: int) -> None:
    inputs = drawn((tokens, hidden), (tokens, hidden), (hidden, mlp), (mlp,), (mlp, hidden), (hidden,))
    assert_equal(values_and_gradients(fused.relu_mlp, inputs), values_and_gradients(plain_mlp, inputs))


@pytest.mark.parametrize(("tokens", "vocab"), [(1, 1), (5, 3), (64, 257), (70, 5000)])
def test_loss(tokens: int, vocab: int) -> None:
    (logits,) = drawn((tokens, vocab))
    targets = torch.arange(tokens) * 7 % vocab
    plain = values_and_gradients(F.cross_entropy, [logits], targets)
    # Its own copy: the logits' memory is used up.
    ours = values_and_gradients(lambda x: fused.cross_entropy(x.clone(), targets), [logits])
    assert_equal(ours, plain)


def test_the_loss_of_a_token_whose_probability_is_below_all_numbers_is_finite() -> None:
    logits = torch.tensor([[0.0, -1000.0], [5.0, 5.0]], requires_grad=True)
    loss = fused.cross_entropy(logits.clone(), torch.tensor([1, 0]))
    assert loss.item() == pytest.approx((1000 + math.log(2)) / 2)
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, torch.tensor([[0.5, -0.5], [-0.25, 0.25]]))


def test_under_autocast_the_plain_formulas_stand() -> None:
    model = Transformer(SHAPE, PAPER)
    tokens_bs = tokens_for(model.variant)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(tokens_bs).float().square().mean()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
