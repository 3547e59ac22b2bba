"""A study in memory: the store of replays, plans and tests, which leaves nothing on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from nasgrow.study.trials import Kind, TrialRecord


class MemoryStore:
    """Numbers the trials of each kind, after those that there are; it keeps none, as the driver does."""

    def __init__(self, trials: Mapping[Kind, Iterable[int]] | None = None) -> None:
        self._next: Counter[Kind] = Counter()
        for kind, numbers in (trials or {}).items():
            self._next[kind] = max(numbers, default=-1) + 1

    def add(self, record: TrialRecord) -> int:
        """The number of a trial, which starts."""
        self._next[record.kind] += 1
        return self._next[record.kind] - 1

    def report(self, record: TrialRecord, at: float, loss: float) -> None:
        """An evaluation of a trial."""

    def save(self, record: TrialRecord) -> None:
        """A trial goes on later."""

    def end(self, record: TrialRecord) -> None:
        """A trial has ended."""

    def renew(self) -> None:
        """There is no other process to show anything."""
