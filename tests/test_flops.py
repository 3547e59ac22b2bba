"""The cost of a step, against what torch counts on the real step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nasgrow.config import TrainingConfig
from nasgrow.flops import forward_flops, inference_flops, muon_flops, parameter_count, step_flops
from nasgrow.model import Transformer
from nasgrow.shape import Shape
from nasgrow.training.optimizers import build_optimizers
from nasgrow.verify import BASE, KEY_BASE, KEY_FIXED, PAPER, VARIANTS

EQUAL = Shape.uniform(hidden=16, layers=2, mlp=24, heads=2, key=8, value=8)
SHAPES = {"unequal": BASE, "equal keys and values": EQUAL}


def counted_step(model: Transformer, config: TrainingConfig, sequences: int) -> int:
    """The FLOPs that torch counts for a whole training step, optimizer included."""
    tokens_bs = torch.randint(model.variant.vocab, (sequences, config.context + 1))
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
    config = TrainingConfig.model_validate({"context": 12, "batch_tokens": 36, "optimizer": optimizer})
    model = Transformer(SHAPES[shape], VARIANTS[variant])
    expected = step_flops(model.shape, model.variant, 3, muon=optimizer == "muon")
    assert counted_step(model, config, sequences=3) == expected


def test_a_step_with_shorter_sequences_costs_what_torch_counts() -> None:
    """As in a ramp: the model could read longer ones."""
    config = TrainingConfig(context=5, batch_tokens=15)
    model = Transformer(BASE, PAPER)
    assert counted_step(model, config, sequences=3) == step_flops(BASE, PAPER.with_context(5), 3)


def test_cost_grows_with_tokens_and_the_square_of_the_length() -> None:
    one, two = (forward_flops(BASE, replace(PAPER, context=length), 1) for length in (12, 24))
    assert forward_flops(BASE, PAPER, 5) == 5 * one
    assert two > 2 * one
    assert step_flops(BASE, PAPER, 1) == 3 * one
    assert step_flops(BASE, PAPER, 1, muon=True) == 3 * one + muon_flops(BASE, PAPER)
    assert inference_flops(BASE, PAPER) == one // 12


@pytest.mark.parametrize("variant", KEY_FIXED)
def test_norms_and_given_frequencies_of_keys_cost_no_products(variant: str) -> None:
    kind = KEY_FIXED[variant]
    config = TrainingConfig.model_validate({"context": kind.context, "batch_tokens": 3 * kind.context})
    assert counted_step(Transformer(KEY_BASE, kind), config, 3) == step_flops(KEY_BASE, kind, 3)
    model = Transformer(KEY_BASE, kind)
    assert parameter_count(KEY_BASE, kind) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_are_counted_once(variant: str) -> None:
    model = Transformer(BASE, VARIANTS[variant])
    assert parameter_count(BASE, VARIANTS[variant]) == sum(p.numel() for p in model.parameters())
