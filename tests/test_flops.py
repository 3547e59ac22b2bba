"""The cost of a step, against what torch counts on the real step."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nasgrow.config import TrainingConfig
from nasgrow.flops import forward_flops, muon_flops, parameter_count, step_flops
from nasgrow.model import Transformer
from nasgrow.shape import Shape, Variant
from nasgrow.training.optimizers import build_optimizers
from nasgrow.verify import BASE, VARIANTS

EQUAL = Shape.uniform(hidden=16, layers=2, mlp=24, heads=2, key=8, value=8, context=12, vocab=29)
SHAPES = {"unequal": BASE, "equal keys and values": EQUAL}


def counted_step(model: Transformer, config: TrainingConfig, sequences: int) -> int:
    """The FLOPs that torch counts for a whole training step, optimizer included."""
    tokens_bs = torch.randint(model.shape.vocab, (sequences, config.context + 1))
    optimizers = build_optimizers(model, config)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        F.cross_entropy(model(tokens_bs[:, :-1]).flatten(0, 1), tokens_bs[:, 1:].flatten()).backward()
        for optimizer in optimizers:
            optimizer.step()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_costs_exactly_what_torch_counts(variant: str, shape: str, optimizer: str) -> None:
    config = TrainingConfig.model_validate({"context": 10, "batch_tokens": 30, "optimizer": optimizer})
    model = Transformer(SHAPES[shape], VARIANTS[variant])
    expected = step_flops(model.shape, model.variant, 3, 10, muon=optimizer == "muon")
    assert counted_step(model, config, sequences=3) == expected


def test_cost_grows_with_tokens_and_the_square_of_the_length() -> None:
    variant = Variant()
    one, two = (forward_flops(BASE, variant, 1, length) for length in (6, 12))
    assert forward_flops(BASE, variant, 5, 6) == 5 * one
    assert two > 2 * one
    assert step_flops(BASE, variant, 1, 6) == 3 * one
    assert step_flops(BASE, variant, 1, 6, muon=True) == 3 * one + muon_flops(BASE, variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_are_counted_once(variant: str) -> None:
    model = Transformer(BASE, VARIANTS[variant])
    assert parameter_count(BASE, VARIANTS[variant]) == sum(p.numel() for p in model.parameters())
