"""The grid: every point of a space, those that mean the same runs once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import product
from typing import Any

from nasgrow.search.spaces import Space

MOST = 20_000
"""The most points, counted with those that mean the same runs, that a grid may have."""


def check_countable(space: Space) -> None:
    """Raise ``ValueError`` if a space has too many points for a grid, or nobody knows how many."""
    if not space.settings or space.size > MOST:
        raise ValueError(
            f"wants a space of lists and ranges with a step, of at most {MOST:,} points, not {space.size:,}"
        )


def points(space: Space) -> dict[Hashable, dict[str, Any]]:
    """The parameters of every distinct point, by the point's key; of equal points the first."""
    found: dict[Hashable, dict[str, Any]] = {}
    for values in product(*(setting.values for setting in space.settings.values())):
        parameters = dict(zip(space.settings, values, strict=True))
        found.setdefault(space.at(parameters).key, parameters)
    return found


class Grid:
    """The points of a space, and which of them trials have."""

    def __init__(self, space: Space) -> None:
        self._space = space
        found = points(space)
        self._points = list(found.values())
        self._places = {key: place for place, key in enumerate(found)}
        self._taken: dict[int, int | None] = {}

    def __len__(self) -> int:
        return len(self._points)

    def left(self, trials: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The parameters of the points that none of these trials has: each by its number."""
        for number, parameters in trials.items():
            if (
                number not in self._taken
            ):  # points are large: looking for one takes much longer than for a number
                self._taken[number] = self._places.get(self._space.at(parameters).key)
        there = set(self._taken.values())
        return [parameters for place, parameters in enumerate(self._points) if place not in there]
