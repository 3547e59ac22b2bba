"""Check on this machine that every expansion preserves the function of every variant.

For each variant, a small model with unequal layers and heads is trained for a few steps, then grown by each
expansion. A check measures the largest difference of any logit, relative to the largest logit, in float64 and
in float32, and whether gradients reach the new parameters.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.optim import AdamW

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues, InsertLayers
from nasgrow.growth import Growth, grow
from nasgrow.model import Transformer
from nasgrow.shape import HeadGroup, Layer, Shape, Variant

LIMITS: Mapping[str, float] = {"float64": 1e-12, "float32": 1e-5}
"""The largest relative difference of logits that still counts as preserved, by dtype."""

PAPER = Variant(vocab=29, context=12)

VARIANTS: Mapping[str, Variant] = {
    "paper": PAPER,
    "gelu": replace(PAPER, activation="gelu"),
    "silu": replace(PAPER, activation="silu"),
    "gated": replace(PAPER, activation="silu", gated=True),
    "bidirectional": replace(PAPER, causal=False),
    "rope": replace(PAPER, positions="rope"),
    "no positions": replace(PAPER, positions="none"),
    "final norm": replace(PAPER, final_norm=True),
    "tied": replace(PAPER, tied=True),
    "tied + final norm": replace(PAPER, tied=True, final_norm=True),
    "grouped-query": replace(PAPER, queries=3),
    "norm after": replace(PAPER, norm="after"),
    "no biases": replace(PAPER, biases=False),
    "qkv bias": replace(PAPER, positions="rope", qkv_bias=True),
    "modern": replace(
        PAPER, activation="silu", gated=True, positions="rope", final_norm=True, tied=True, queries=2
    ),
}

_PAIRS = 0.9, 0.0, 0.02, 0.3

KEY_FIXED: Mapping[str, Variant] = {
    "qk norm": replace(PAPER, qk_norm=True),
    "rope frequencies": replace(PAPER, positions="rope", rope_frequencies=_PAIRS),
    "everything fixed": replace(
        VARIANTS["modern"], biases=False, qkv_bias=True, qk_norm=True, rope_frequencies=_PAIRS
    ),
}
"""Variants whose keys cannot grow."""

BASE = Shape(
    hidden=24,
    layers=(
        Layer(20, (HeadGroup(2, 8, 6), HeadGroup(1, 4, 8))),
        Layer(32, (HeadGroup(3, 6, 6),)),
    ),
)

EXPANSIONS: Mapping[str, Sequence[Expansion]] = {
    "mlp": (GrowMlp(40),),
    "heads": (AddHeads(5),),
    "value": (GrowValues(10),),
    "key": (GrowKeys(12),),
    "key + value": (GrowKeys(12), GrowValues(12)),
    "hidden": (GrowHidden(40),),
    "layers": (InsertLayers((0, 1, 1, 2)),),
    "subset": (GrowMlp(48, layers=(1,)), GrowKeys(16, layers=(0,), heads=(1,)), GrowValues(9, heads=(0, 2))),
    "everything": (
        GrowHidden(40),
        InsertLayers((1, 2)),
        GrowMlp(48),
        GrowKeys(12),
        GrowValues(12),
        AddHeads(6),
    ),
}


KEY_BASE = Shape(
    BASE.hidden,
    tuple(
        Layer.of_heads(layer.mlp, ((2 * len(_PAIRS), value) for _, value in layer.heads))
        for layer in BASE.layers
    ),
)
"""``BASE`` with keys of equal size, for variants whose keys cannot grow."""

KEY_EXPANSIONS: Mapping[str, Sequence[Expansion]] = {
    title: kept
    for title, expansions in EXPANSIONS.items()
    if (kept := [one for one in expansions if not isinstance(one, GrowKeys)])
}
"""The expansions of variants whose keys cannot grow."""


@dataclass(frozen=True)
class Check:
    """The result of one entry of ``EXPANSIONS`` in one variant.

    Attributes:
        variant: The name of the variant.
        expansion: The name of the expansions.
        float64: The largest difference of any logit, relative to the largest logit, in float64.
        float32: The same in float32.
        gradient_after_one: The norm of the new parameters' gradients after one step of the grown
            model.
        gradient_after_two: The same after two steps.
        milliseconds: The time that growing took, in float32 and without an optimizer.
    """

    variant: str
    expansion: str
    float64: float
    float32: float
    gradient_after_one: float
    gradient_after_two: float
    milliseconds: float

    @property
    def preserved(self) -> bool:
        """Whether both differences are within their limits; NaN is not."""
        return self.float64 <= LIMITS["float64"] and self.float32 <= LIMITS["float32"]

    @property
    def alive(self) -> bool:
        """Whether the gradients of the new parameters are finite and not all zero, both times."""
        return all(math.isfinite(g) and g > 0 for g in (self.gradient_after_one, self.gradient_after_two))


def checks(seed: int = 0) -> Iterator[Check]:
    """Yield the check of every expansion in every variant that allows it."""
    generator = torch.Generator().manual_seed(seed)
    tokens_bs = torch.randint(PAPER.vocab, (4, PAPER.context + 1), generator=generator)
    for variants, base, events in ((VARIANTS, BASE, EXPANSIONS), (KEY_FIXED, KEY_BASE, KEY_EXPANSIONS)):
        for name, variant in variants.items():
            trained = _trained(base, variant, tokens_bs, seed)
            for title, expansions in events.items():
                yield _check((name, title), expansions, trained, tokens_bs, seed)


def _trained(base: Shape, variant: Variant, tokens_bs: Tensor, seed: int) -> tuple[Transformer, AdamW]:
    model = Transformer(base, variant, seed=seed, dtype=torch.float64)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    for _ in range(5):
        _step(model, optimizer, tokens_bs)
    return model, optimizer


def _step(model: Transformer, optimizer: AdamW, tokens_bs: Tensor) -> None:
    _backward(model, tokens_bs)
    optimizer.step()


def _backward(model: Transformer, tokens_bs: Tensor) -> None:
    model.zero_grad()
    logits_bsv = model(tokens_bs[:, :-1])
    F.cross_entropy(logits_bsv.flatten(0, 1), tokens_bs[:, 1:].flatten()).backward()


def _check(
    names: tuple[str, str],
    expansions: Sequence[Expansion],
    trained: tuple[Transformer, AdamW],
    tokens_bs: Tensor,
    seed: int,
) -> Check:
    single = copy.deepcopy(trained[0]).float()
    difference32, _, seconds = _grown(single, None, expansions, tokens_bs, seed)

    model, optimizer = copy.deepcopy(trained)
    difference64, growth, _ = _grown(model, optimizer, expansions, tokens_bs, seed)
    norms = []
    for _ in range(2):
        _step(model, optimizer, tokens_bs)
        _backward(model, tokens_bs)
        norms.append(growth.new_gradient_norm(model))
    return Check(*names, difference64, difference32, norms[0], norms[1], 1000 * seconds)


def _grown(
    model: Transformer,
    optimizer: AdamW | None,
    expansions: Sequence[Expansion],
    tokens_bs: Tensor,
    seed: int,
) -> tuple[float, Growth, float]:
    """Grow ``model``; return the relative difference of its logits, the growth, and its seconds."""
    with torch.no_grad():
        before = model(tokens_bs[:, :-1])
        start = time.perf_counter()
        growth = grow(model, optimizer, expansions, seed=seed)
        seconds = time.perf_counter() - start
        after = model(tokens_bs[:, :-1])
    return ((after - before).abs().max() / before.abs().max()).item(), growth, seconds
