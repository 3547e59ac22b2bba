"""Samples: the points of a space that a tree search considers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import islice
from typing import Any

import numpy as np

from nasgrow.search.samplers import trial_seed
from nasgrow.search.spaces import Space
from nasgrow.search.tree.branches import Branch
from nasgrow.search.tree.leaves import Leaf, Leaves

FRESH, TURNS, PARTS = 2, 2, 32
"""A part of a sample: so many points from all over the space, and variations of some of the best branches,
which begin like them; each has its turn after so many parts. So many parts are considered together, as points
take long to decode."""


class Sample:
    """Points of a large space, a part of them new for each trial.

    Args:
        name: The study's.
        space: The space.
        leaf: Makes the leaf of a point.
    """

    def __init__(self, name: str, space: Space, leaf: Callable[[Mapping[str, Any]], Leaf]) -> None:
        self._name, self._space, self._leaf = name, space, leaf
        self._numbers: list[int] = []
        self._parents: Set[int | None] = set()
        self._drawn: dict[tuple[int, int | None], Leaves] = {}
        self._all: Leaves | None = None

    def leaves(self, best: Sequence[Branch], number: int) -> Leaves:
        """The points of the latest parts; the same object as long as nothing changes.

        Args:
            best: The branches to vary.
            number: The trial's, for which a part is drawn. Whoever draws for every trial has the same parts
                as others; who has missed some, because others draw too, keeps older ones of its own.
        """
        parents: dict[int | None, Branch | None] = {None: None, **{one.origin: one for one in best}}
        if self._all is None or self._numbers[-1] != number or self._parents != parents.keys():
            numbers = [*(one for one in self._numbers if one != number), number][-PARTS:]
            missing = (one for one in range(number - 1, number - 2 * PARTS, -1) if one not in numbers)
            numbers = [*reversed([*islice(missing, PARTS - len(numbers))]), *numbers]
            drawn = {
                (part, one): self._drawn.get((part, one)) or self._part(part, one, parent)
                for part in numbers
                for one, parent in parents.items()
                if one is None or (part + one) % TURNS == 0
            }
            self._all = Leaves.joined([*drawn.values()])
            self._numbers, self._parents, self._drawn = numbers, parents.keys(), drawn
        return self._all

    def _part(self, part: int, origin: int | None, parent: Branch | None) -> Leaves:
        """Points from all over the space, or a variation of a branch."""
        if parent is None:
            rng = np.random.default_rng(trial_seed(self._name, part))
            return Leaves.of([self._leaf(one) for one in self._draw(FRESH, rng)])
        rng = np.random.default_rng(trial_seed(f"{self._name}/{origin}", part))
        settings = self._space.settings
        changed = rng.random(len(settings)) < 2 / len(settings)
        changed[rng.integers(len(settings))] = True
        point = {name: parent.leaf.parameters[name] for name in settings}
        for (name, setting), change in zip(settings.items(), changed, strict=True):
            if change:
                (point[name],) = setting.draw(1, rng)
        return Leaves.of([self._leaf(point)])

    def _draw(self, count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
        """Random points."""
        columns = [setting.draw(count, rng) for setting in self._space.settings.values()]
        return [dict(zip(self._space.settings, row, strict=True)) for row in zip(*columns, strict=True)]
