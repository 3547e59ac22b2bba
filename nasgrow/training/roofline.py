"""Compute a lower bound of the seconds of a training step from the data sheet of a device.

It assumes that products run at the device's peak, that memory is moved at its full bandwidth, that the two
overlap, and that launching kernels costs nothing. It counts these memory transfers:

- each activation that layers and logits write, in bfloat16, five times: written, read by the next operation,
  read again by the backward pass, and its gradient written and read. Attention writes no scores.
- each parameter with 54 bytes. Its copy in bfloat16 is made, and read by both passes (10). Its gradient is
  written, read for its norm, and clipped (16). AdamW reads four float32 values and writes three (28).

Real steps take longer, narrow shapes several times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from nasgrow.config import TrainingConfig
from nasgrow.flops import parameter_count, step_flops
from nasgrow.shape import Shape, Variant

ACTIVATION_BYTES, PARAMETER_BYTES = 5 * 2, 54


@dataclass(frozen=True)
class Card:
    """A GPU by its data sheet: dense bfloat16 FLOPs, and bytes read or written, per second."""

    flops: float
    bandwidth: float


A100 = Card(flops=312e12, bandwidth=2.0e12)
"""NVIDIA A100 80GB SXM."""


def step_bound(shape: Shape, variant: Variant, training: TrainingConfig, card: Card) -> float:
    """Return the lower bound of the seconds of a training step on a card."""
    activations = variant.vocab + sum(
        6 * shape.hidden
        + (3 if variant.gated else 2) * layer.mlp
        + sum(group.count * variant.queries * 2 * (group.key + group.value) for group in layer.groups)
        for layer in shape.layers
    )
    flops = step_flops(shape, variant, training.sequences, muon=training.optimizer == "muon")
    moved = ACTIVATION_BYTES * training.batch_tokens * activations
    moved += PARAMETER_BYTES * parameter_count(shape, variant)
    return max(flops / card.flops, moved / card.bandwidth)
