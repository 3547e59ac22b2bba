"""Samples: the points of a space that a tree search considers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from nasgrow.search.samplers import trial_seed
from nasgrow.search.spaces import Space
from nasgrow.search.tree.branches import Branch
from nasgrow.search.tree.leaves import Leaf, Leaves

FRESH, VARIED, PARTS = 20, 4, 10
"""A part of a sample: points from all over the space, and variations of each of the best branches, which
begin like them. The latest parts are considered together, so that few points are decoded for each trial."""


class Sample:
    """Points of a large space, a part of them new for each trial.

    Args:
        name: The study's.
        space: The space.
        leaf: Makes the leaf of a point.
    """

    def __init__(self, name: str, space: Space, leaf: Callable[[Mapping[str, Any]], Leaf]) -> None:
        self._name, self._space, self._leaf = name, space, leaf
        self._drawn: dict[tuple[int, int | None], Leaves] = {}

    def parts(self, best: Sequence[Branch], number: int) -> list[Leaves]:
        """The latest parts, the same for the same number of trials and the same best branches."""
        parents: dict[int | None, Branch | None] = {None: None, **{one.origin: one for one in best}}
        wanted = product(range(max(0, number - PARTS + 1), number + 1), parents)
        self._drawn = {
            (part, origin): self._drawn.get((part, origin)) or self._part(part, origin, parents[origin])
            for part, origin in wanted
        }
        return list(self._drawn.values())

    def _part(self, part: int, origin: int | None, parent: Branch | None) -> Leaves:
        """Points from all over the space, or variations of a branch."""
        if parent is None:
            rng = np.random.default_rng(trial_seed(self._name, part))
            return Leaves.of([self._leaf(one) for one in self._draw(FRESH, rng)])
        rng = np.random.default_rng(trial_seed(f"{self._name}/{origin}", part))
        given = {name: parent.leaf.parameters[name] for name in self._space.settings}
        drawn = []
        for other in self._draw(VARIED, rng):
            changed = rng.random(len(given)) < 2 / len(given)
            changed[rng.integers(len(given))] = True
            drawn.append({n: other[n] if c else given[n] for n, c in zip(given, changed, strict=True)})
        return Leaves.of([self._leaf(one) for one in drawn])

    def _draw(self, count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
        """Random points."""
        columns = [setting.draw(count, rng) for setting in self._space.settings.values()]
        return [dict(zip(self._space.settings, row, strict=True)) for row in zip(*columns, strict=True)]
