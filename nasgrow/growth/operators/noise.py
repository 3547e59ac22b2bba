"""Noise that parts copies and leaves the function as it is.

The copies of a unit are equal, so what reads them sees only the sum of its weights over them. Noise that adds
up to zero over the copies (+N and -N of two) changes none of these sums, and the function is exact whatever
its size. But the copies are now read differently, so their gradients differ, and with the first step they do
too. Every copy of an output has noise of its own.

This holds for all that reads units by the parameter table: matrices that read the residual stream, what
leaves MLP units, values and heads, and keys, whose units multiply those of queries. Embeddings, gains and
biases read no copies, and have no noise.
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
    """Boxes of what copies of the same units go through to the same outputs.

    Attributes:
        layer: The grown model's layer that they belong to: other layers may take from the same old tensor.
        source: The old tensor they come from.
        taken: Its units.
        given: The outputs; heads are counted over all groups of a layer.
    """

    layer: int | None
    source: str
    taken: Box
    given: Box


def cancelling(size: float, tiles: Mapping[str, TensorPlan], situation: Situation) -> Finish:
    """Noise that adds up to zero over the copies of every unit.

    Args:
        size: Its standard deviation, in root mean squares of the copied values; 0 is none.
        tiles: Plans in which units are copied with equal shares: they say what reads which copies. The
            weights themselves may have the shares of several copies in one place, and zeros in the others.
        situation: Gives the old values and random streams.
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
    """The noise of all members of a family, of the size of the values that each copies."""
    old = s.parameters[copy.source.name].detach().view(copy.source.sizes)[index(copy.take)]
    scale = abs(copy.factor) * float(old.double().square().mean().sqrt())
    generator = s.generator(f"noise: {family}")
    drawn = torch.randn((many, *old.shape), generator=generator, dtype=torch.float64, device="cpu")
    drawn -= drawn.mean(0)  # now they add up to 0, and have a little less variance
    return drawn * (scale * sqrt(many / (many - 1)))
