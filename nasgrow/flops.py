"""The cost of training, counted from the shape alone.

Only matrix products count, with two operations for each multiply-add: projections, attention (all scores,
causal or not), the output head, and Muon's own products. A backward pass costs twice its forward pass. The
counts equal those of torch's FlopCounterMode on the real step, with the math backend of
scaled_dot_product_attention. For fused attention kernels, FlopCounterMode counts nothing on the CPU; on CUDA
it also counts the scores that their backward pass recomputes.
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
"""The number of shapes whose cost is cached: the points of a space have many shapes in common."""


def _entries(shape: Shape, variant: Variant) -> Iterator[tuple[TensorSpec, int]]:
    """Yield the tensors of a shape, each with the number of times that it occurs.

    Equal layers are yielded once. Names and layer indices are those of a model with one layer.
    """
    for index, (layer, many) in enumerate(Counter(shape.layers).items()):
        for entry in table(shape.with_layers([layer]), variant).values():
            if entry.layer is not None:
                yield entry, many
            elif index == 0:
                yield entry, 1


@lru_cache(CACHED_SHAPES)
def parameter_count(shape: Shape, variant: Variant) -> int:
    """Return the number of parameters; a tied embedding counts once."""
    return sum(times * entry.count for entry, times in _entries(shape, variant))


@lru_cache(CACHED_SHAPES)
def forward_flops(shape: Shape, variant: Variant, sequences: int) -> int:
    """Return the FLOPs of one forward pass over ``sequences`` sequences that fill the context."""
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
    """Return the FLOPs of one training step on ``sequences`` sequences that fill the context.

    They are those of the forward and the backward pass, and of Muon's update if ``muon``.
    """
    update = muon_flops(shape, variant) if muon else 0
    return 3 * forward_flops(shape, variant, sequences) + update


def inference_flops(shape: Shape, variant: Variant) -> int:
    """Return the FLOPs per token of a forward pass over a full context."""
    return forward_flops(shape, variant, 1) // variant.context


@lru_cache(CACHED_SHAPES)
def muon_flops(shape: Shape, variant: Variant) -> int:
    """Return the FLOPs of one Muon update of all matrices that multiply activations.

    Each Newton-Schulz iteration computes X Xᵀ, its square, and the product with X.
    """
    total = 0
    for entry, times in _entries(shape, variant):
        if entry.row.multiplies:
            small, large = min(entry.stored), prod(entry.stored) // min(entry.stored)
            total += times * MUON_ITERATIONS * 2 * (2 * small * small * large + small**3)
    return total
