"""Passed: how far the ways of points were trained, as far as the branches of a tree tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Passed:
    """The parts of ways that some branches were trained on, which all who begin like them share.

    Args:
        stops: The fractions of the budget at which ways may part, or be left.
    """

    def __init__(self, stops: Sequence[float]) -> None:
        self._stops = np.array([0.0, *stops])
        self._known: set[int] = set()

    def add(self, way: Sequence[int], until: float) -> None:
        """Add the way of a branch, until a fraction of the budget."""
        self._known.update(way[: int(np.searchsorted(self._stops, until + 1e-9)) - 1])

    def until(self, ways: Integers) -> Floats:
        """The fractions of the budget until which ways were passed."""
        return self._stops[[self._last(way) for way in ways.tolist()]]

    def _last(self, way: list[int]) -> int:
        """How many stops on a way were passed."""
        known = self._known
        if known.isdisjoint(way):  # as most are, and this is the fastest way to know it
            return 0
        return next(place for place in range(len(way), 0, -1) if way[place - 1] in known)
