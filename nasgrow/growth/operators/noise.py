"""Noise that makes the copies of a unit diverge in training and preserves the function.

The copies of a unit are equal, so only the sum of their outgoing weights matters. Noise that adds up to zero
over the copies (+N and -N for two) changes none of these sums, so the function is preserved exactly, whatever
the size of the noise. But the outgoing weights of the copies now differ, so their gradients differ, and after
the first step the copies do too. Every copy of an output has independent noise.

This holds for all tensors that read units by the parameter table: matrices that read the residual stream,
outgoing weights of MLP units, values and heads, and keys with their biases, whose units multiply
those of queries. Embeddings, gains and other biases read no copies, and have no noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from nasgrow.growth.operators.contract import Finish, Situation
from nasgrow.growth.plan import Copy, TensorPlan
from nasgrow.params import Box, TensorSpec, index


class _Family(NamedTuple):
    """A key of boxes over which noise must add up to zero: copies of the same inputs, to the same outputs.

    Attributes:
        layer: The layer of the grown model; other layers may copy the same old tensor.
        source: The name of the old tensor that the boxes copy.
        taken: The input units in the old tensor.
        given: The output units in the grown one; heads are counted over all groups of a layer.
    """

    layer: int | None
    source: str
    taken: Box
    given: Box


def cancelling(size: float, tiles: Mapping[str, TensorPlan], situation: Situation) -> Finish:
    """Return a function for ``Recipe.finish`` that adds noise with sum zero over the copies of every unit.

    Args:
        size: The standard deviation of the noise, as a multiple of the root mean square of the
            copied values; 0 for no noise.
        tiles: Plans in which units are copied with equal shares; they define which tensors read which
            copies. The recipe's plans may differ: they may put the shares of several copies into one
            box, and zeros into the others.
        situation: The situation, for the old values and random generators.
    """
    families: dict[_Family, list[tuple[str, Copy]]] = {}
    for name, tile in tiles.items():
        for copy in tile.copies:
            families.setdefault(_family(copy, tile.entry), []).append((name, copy))

    def finish(plan: TensorPlan, weights: Tensor, generator: torch.Generator) -> None:
        name = plan.entry.name
        own = dict.fromkeys(_family(copy, plan.entry) for copy in tiles[name].copies)
        for family in own if size else ():
            members = families[family]
            if len(members) > 1:
                drawn = _drawn(family, len(members), members[0][1], situation)
                for (owner, copy), noise in zip(members, drawn, strict=True):
                    if owner == name:
                        weights[index(copy.put)] += size * noise.to(weights)

    return finish


def _family(copy: Copy, entry: TensorSpec) -> _Family:
    reads = entry.row.reads
    taken = tuple(take for axis, take in zip(entry.axes, copy.take, strict=True) if axis in reads)
    first = {"E": entry.heads.start if entry.heads is not None else 0}
    given = tuple(
        (put[0] + first.get(axis, 0), put[1] + first.get(axis, 0))
        for axis, put in zip(entry.axes, copy.put, strict=True)
        if axis not in reads
    )
    return _Family(entry.layer, copy.source.name, taken, given)


def _drawn(family: _Family, many: int, copy: Copy, s: Situation) -> Tensor:
    """Return the noise of all members of a family, with the root mean square of the values they copy."""
    old = s.parameters[copy.source.name].detach().view(copy.source.sizes)[index(copy.take)]
    scale = abs(copy.factor) * float(old.double().square().mean().sqrt())
    generator = s.generator(f"noise: {family}")
    drawn = torch.randn((many, *old.shape), generator=generator, dtype=torch.float64, device="cpu")
    drawn -= drawn.mean(0)  # the sum is now 0; the factor below restores the variance
    return drawn * (scale * sqrt(many / (many - 1)))
