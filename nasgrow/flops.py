"""The cost of training, counted from the shape alone.

Everything that is a matrix product counts, two operations for each multiply-add, and nothing else does:
projections, attention (in full, causal or not), the output head, and Muon's own products. A backward pass
costs twice its forward pass. The counts are those of torch's FlopCounterMode on the real step.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from nasgrow.params import table
from nasgrow.shape import Shape, Variant

MUON_ITERATIONS = 5
"""Newton-Schulz iterations of one Muon step, torch's default."""

REMEMBERED = 10_000
"""Shapes whose cost a process remembers: the points of a space have many in common."""


@lru_cache(REMEMBERED)
def parameter_count(shape: Shape, variant: Variant) -> int:
    """The number of parameters; a tied embedding counts once."""
    return sum(entry.count for entry in table(shape, variant).values())


@lru_cache(REMEMBERED)
def forward_flops(shape: Shape, variant: Variant, sequences: int, length: int) -> int:
    """The cost of one forward pass over ``sequences`` sequences of ``length`` tokens."""
    products = sum(entry.count for entry in table(shape, variant).values() if entry.row.multiplies)
    if variant.tied:
        products += shape.vocab * shape.hidden
    # Scores and weighted values; unequal key and value sizes are padded to the larger.
    attended = sum(
        2 * group.count * variant.queries * max(group.key, group.value)
        for layer in shape.layers
        for group in layer.groups
    )
    return 2 * sequences * length * (products + length * attended)


def step_flops(shape: Shape, variant: Variant, sequences: int, length: int, *, muon: bool = False) -> int:
    """The cost of one training step: forward, backward, and Muon's update where it is used."""
    update = muon_flops(shape, variant) if muon else 0
    return 3 * forward_flops(shape, variant, sequences, length) + update


@lru_cache(REMEMBERED)
def muon_flops(shape: Shape, variant: Variant) -> int:
    """The cost of one Muon update of the matrices that multiply: X Xᵀ, its square, the product with X."""
    total = 0
    for entry in table(shape, variant).values():
        if entry.row.multiplies:
            small, large = min(entry.stored), prod(entry.stored) // min(entry.stored)
            total += MUON_ITERATIONS * 2 * (2 * small * small * large + small**3)
    return total
