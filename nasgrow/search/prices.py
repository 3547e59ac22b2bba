"""Prices: what training a point would execute now, given what is trained already."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nasgrow.search.spaces import Point, Space

REMEMBERED = 20_000
"""Points whose runs a process remembers."""


@dataclass(frozen=True)
class Way:
    """What of a run can be shared.

    Attributes:
        identity: The run's.
        states: The key of each state on its way, in order, and the FLOPs charged until there.
        charged: FLOPs in all.
    """

    identity: str
    states: tuple[tuple[str, int], ...]
    charged: int


class Trained(Protocol):
    """What is trained already."""

    def holds(self, key: str) -> bool:
        """Whether the state of a key is stored."""

    def ended(self, identity: str) -> bool:
        """Whether a run has ended, so that its result is known."""


class Prices:
    """What the points of a space would cost.

    Args:
        space: The space.
        ways: The runs of a point, one for each seed.
        trained: What is trained already.
    """

    def __init__(self, space: Space, ways: Callable[[Point], Sequence[Way]], trained: Trained) -> None:
        self._space, self._ways_of, self._trained = space, ways, trained
        self._known: dict[Hashable, Sequence[Way]] = {}

    def cost(self, parameters: Mapping[str, Any]) -> int:
        """The FLOPs that the point of these parameters would execute; 0 if its result is known."""
        ways = self._ways(parameters)
        return sum(way.charged - self._spared(way, self._trained.holds) for way in ways)

    def first(self, waiting: Sequence[Mapping[str, Any]], running: Iterable[Mapping[str, Any]]) -> int:
        """Which of several points to train first: its place.

        It is the one of which the most is stored, so that what is shared is used while it is there. But those
        come last that would wait for a point that is being trained, because they share more with it than is
        stored yet.
        """
        known: dict[str, bool] = {}

        def holds(key: str) -> bool:
            if key not in known:
                known[key] = self._trained.holds(key)
            return known[key]

        coming = {key for point in running for way in self._ways(point) for key, _ in way.states}

        def rank(place: int) -> tuple[bool, int]:
            waits, spared = False, 0
            for way in self._ways(waiting[place]):
                here = self._spared(way, holds)
                waits |= any(key in coming and charged > here for key, charged in way.states)
                spared += here
            return waits, -spared

        return min(range(len(waiting)), key=rank)

    def _ways(self, parameters: Mapping[str, Any]) -> Sequence[Way]:
        """The runs of a point, remembered: their keys take milliseconds."""
        named = frozenset(parameters.items())
        if named not in self._known:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[named] = self._ways_of(self._space.at(parameters))
        return self._known[named]

    def _spared(self, way: Way, holds: Callable[[str], bool]) -> int:
        if self._trained.ended(way.identity):
            return way.charged
        return next((charged for key, charged in reversed(way.states) if holds(key)), 0)
