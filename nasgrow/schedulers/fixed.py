"""Schedulers that train given trials: a list of them, or every point of a space."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from nasgrow.schedulers.base import CompleteScheduler, Costs, SearchScheduler, Start, Trials
from nasgrow.spaces.grid import points
from nasgrow.study.plans import CANDIDATE, SEED
from nasgrow.study.study import Study


class FixedScheduler(CompleteScheduler):
    """Starts each trial of a list, in order, unless there is one with the same parameters.

    Args:
        study: The study.
        trials: Its trials so far.
        starts: The list.
    """

    def __init__(self, study: Study, trials: Trials, starts: Sequence[Start]) -> None:
        super().__init__(study, trials)
        self._starts = starts

    def suggest(self) -> Start | None:
        """The first of the list that no trial has."""
        return next(iter(self._left()), None)

    def planned(self) -> int:
        """The trials so far and the rest of the list."""
        return len(self.trials) + len(self._left())

    def _left(self) -> list[Start]:
        started = [trial.parameters for trial in self.counted()]
        return [start for start in self._starts if start.parameters not in started]


def confirmations(candidates: Iterable[str], seeds: Iterable[int]) -> list[Start]:
    """The trials that confirm candidates, given by their labels: each is trained with every seed."""
    return [
        Start({CANDIDATE: candidate, SEED: seed}, candidate) for candidate, seed in product(candidates, seeds)
    ]


class GridScheduler(SearchScheduler):
    """Starts every distinct point of a countable space, in order.

    Args:
        study: The study.
        trials: Its trials so far.
        costs: What points would cost; where it is given, the cheapest starts first, so that prefixes are
            used while they are cached.
    """

    def __init__(self, study: Study, trials: Trials, costs: Costs | None = None) -> None:
        super().__init__(study, trials)
        self._costs = costs
        self._left = points(study.space)
        self._seen: set[int] = set()

    def choose(self) -> Start | None:
        """The next point that no trial has."""
        for number in self.trials.keys() - self._seen:
            self._left.pop(self.study.space.at(self.trials[number].parameters).key, None)
            self._seen.add(number)
        left = self._left.values()
        if not left:
            return None
        return Start(next(iter(left)) if self._costs is None else min(left, key=self._costs.flops))
