"""A trial store in memory, for replays, plans and tests: it writes nothing to disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from nasgrow.study.trials import Kind, TrialRecord


class MemoryStore:
    """Numbers the trials of each kind and stores nothing: the driver keeps the records.

    Args:
        trials: The numbers of the existing trials by kind; new trials get the next higher numbers.
            By default each kind begins at 0.
    """

    def __init__(self, trials: Mapping[Kind, Iterable[int]] | None = None) -> None:
        self._next: Counter[Kind] = Counter()
        for kind, numbers in (trials or {}).items():
            self._next[kind] = max(numbers, default=-1) + 1

    def add(self, record: TrialRecord) -> int:
        """Return the number of a new trial."""
        self._next[record.kind] += 1
        return self._next[record.kind] - 1

    def report(self, record: TrialRecord, at: float, loss: float) -> None:
        """Do nothing."""

    def save(self, record: TrialRecord) -> None:
        """Do nothing."""

    def end(self, record: TrialRecord) -> None:
        """Do nothing."""

    def renew(self) -> None:
        """Do nothing: the store needs no lease, because no other process shares it."""
