"""The cost of training, counted from the shape alone.

Everything that is a matrix product counts, two operations for each multiply-add, and nothing else does:
projections, attention (in full, causal or not), the output head, and Muon's own products. A backward pass
costs twice its forward pass. The counts are those of torch's FlopCounterMode on the real step, with the math
backend of scaled_dot_product_attention. Of fused attention kernels it counts nothing on the CPU, and on CUDA
the scores that their backward pass computes again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from math import prod

from nasgrow.params import TensorSpec, table
from nasgrow.shape import Shape, Variant

MUON_ITERATIONS = 5
"""Newton-Schulz iterations of one Muon step, torch's default."""

CACHED_SHAPES = 10_000
"""Shapes whose cost a process remembers: the points of a space have many in common."""


def _entries(shape: Shape, variant: Variant) -> Iterator[tuple[TensorSpec, int]]:
    """The tensors of a shape, those of equal layers once, and how often there are such."""
    for index, (layer, many) in enumerate(Counter(shape.layers).items()):
        for entry in table(shape.with_layers([layer]), variant).values():
            if entry.layer is not None:
                yield entry, many
            elif index == 0:
                yield entry, 1


@lru_cache(CACHED_SHAPES)
def parameter_count(shape: Shape, variant: Variant) -> int:
    """The number of parameters; a tied embedding counts once."""
    return sum(times * entry.count for entry, times in _entries(shape, variant))


@lru_cache(CACHED_SHAPES)
def forward_flops(shape: Shape, variant: Variant, sequences: int) -> int:
    """The cost of one forward pass over ``sequences`` sequences that fill the context."""
    products = sum(times * entry.count for entry, times in _entries(shape, variant) if entry.row.multiplies)
    if variant.tied:
        products += variant.vocab * shape.hidden
    # Scores and weighted values; unequal key and value sizes are padded to the larger.
    attended = sum(
        2 * group.count * variant.queries * max(group.key, group.value)
        for layer in shape.layers
        for group in layer.groups
    )
    return 2 * sequences * variant.context * (products + variant.context * attended)


def step_flops(shape: Shape, variant: Variant, sequences: int, *, muon: bool = False) -> int:
    """The cost of one training step: forward, backward, and Muon's update where it is used."""
    update = muon_flops(shape, variant) if muon else 0
    return 3 * forward_flops(shape, variant, sequences) + update


def inference_flops(shape: Shape, variant: Variant) -> int:
    """The cost of a forward pass over a full context, for each of its tokens."""
    return forward_flops(shape, variant, 1) // variant.context


@lru_cache(CACHED_SHAPES)
def muon_flops(shape: Shape, variant: Variant) -> int:
    """The cost of one Muon update of the matrices that multiply: X Xᵀ, its square, the product with X."""
    total = 0
    for entry, times in _entries(shape, variant):
        if entry.row.multiplies:
            small, large = min(entry.stored), prod(entry.stored) // min(entry.stored)
            total += times * MUON_ITERATIONS * 2 * (2 * small * small * large + small**3)
    return total
