"""The distinct points of a countable space that no trial has."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from nasgrow.schedulers.base import Trials
from nasgrow.spaces.grid import points
from nasgrow.study.study import ResolvedStudy


class UntriedPoints:
    """Keeps track of which points of a study's space no trial has.

    Args:
        study: The study; its space is countable.
        trials: Its trials, to which others are added.
    """

    def __init__(self, study: ResolvedStudy, trials: Trials) -> None:
        self._space, self._trials = study.space, trials
        self._left = points(study.space)
        self._seen: set[int] = set()

    def left(self) -> Mapping[Hashable, dict[str, Any]]:
        """Return the parameters of the points that no trial has, by key, in the order of the grid."""
        for number in self._trials.keys() - self._seen:
            self._left.pop(self._space.at(self._trials[number].parameters).key, None)
            self._seen.add(number)
        return self._left
