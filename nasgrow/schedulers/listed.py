"""Schedulers that train a fixed set of trials: a list of them, or every point of a space."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from nasgrow.schedulers.base import CompleteScheduler, Costs, SearchScheduler, Start, Trials
from nasgrow.schedulers.untried import UntriedPoints
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trial_runs import CANDIDATE, SEED


class FixedScheduler(CompleteScheduler):
    """Starts each trial of a list, in order, unless a trial with the same parameters exists.

    Args:
        study: The study.
        trials: Its trials so far.
        starts: The list.
    """

    def __init__(self, study: ResolvedStudy, trials: Trials, starts: Sequence[Start]) -> None:
        super().__init__(study, trials)
        self._starts = starts

    def suggest(self) -> Start | None:
        """Start the first entry of the list that has no trial yet."""
        return next(iter(self._left()), None)

    def planned(self) -> int:
        """Return the number of trials so far and of entries that have none yet."""
        return len(self.trials) + len(self._left())

    def _left(self) -> list[Start]:
        started = [trial.parameters for trial in self.counted()]
        return [start for start in self._starts if start.parameters not in started]


def confirmations(candidates: Iterable[str], seeds: Iterable[int]) -> list[Start]:
    """Return the trials that confirm candidates: one for each candidate and seed.

    Args:
        candidates: The labels of the trials to confirm.
        seeds: Fresh seeds.
    """
    return [
        Start({CANDIDATE: candidate, SEED: seed}, candidate) for candidate, seed in product(candidates, seeds)
    ]


class GridScheduler(SearchScheduler):
    """Starts every distinct point of a countable space (grid search).

    Args:
        study: The study.
        trials: Its trials so far.
        costs: Predicts what each point would cost. If given, the cheapest point starts next, so that cached
            prefixes are used before they are evicted; otherwise points start in the order of the grid.
    """

    def __init__(self, study: ResolvedStudy, trials: Trials, costs: Costs | None = None) -> None:
        super().__init__(study, trials)
        self._costs = costs
        self._untried = UntriedPoints(study, trials)

    def choose(self) -> Start | None:
        """Start the next point that has no trial yet."""
        left = self._untried.left().values()
        if not left:
            return None
        return Start(next(iter(left)) if self._costs is None else min(left, key=self._costs.flops))
