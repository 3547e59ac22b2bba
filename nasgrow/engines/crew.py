"""What an engine is: a crew that trains the trials of a study until none is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

MISTAKE = 2
"""The exit code of a command that ends with one line for the user."""

FULL = 3
"""The exit code of a worker that ran out of memory: as if it had died, but it could say so."""

STOPPED = 130
"""The exit code of one that was asked to stop, and saved."""

PAUSE = 1.0
"""Seconds between two looks at a crew."""

REPLACEMENTS = 3
"""How many workers that died may be replaced without a trial having ended in between, at least."""


class Crew(Protocol):
    """Those who train, wherever they are."""

    @property
    def folder(self) -> Path:
        """The study's folder."""

    @property
    def size(self) -> int:
        """How many trials it trains at once."""

    def start(self) -> None:
        """Begin."""

    def watch(self, ended: Callable[[], int], look: Callable[[], None], stop: Callable[[], bool]) -> bool:
        """Wait until nothing is left to do; False if the crew was asked to stop before.

        Args:
            ended: The number of trials that have ended: as long as it rises, the dead are replaced.
            look: Called about once a second.
            stop: Whether to save and stop.

        Raises:
            ValueError: A worker failed, or workers keep dying; the others have saved and stopped.
        """


class Deaths:
    """Counts workers that died since a trial last ended; all that there are may die at once, with a node."""

    def __init__(self, ended: Callable[[], int]) -> None:
        self._ended, self._before, self._count, self._most = ended, ended(), 0, REPLACEMENTS

    def expect(self, size: int) -> None:
        """Note that there are so many workers: a cluster may have become larger."""
        self._most = max(self._most, size)

    def add(self, complaint: str) -> None:
        """Note a death.

        Raises:
            ValueError: There were too many: whatever kills workers will kill the next.
        """
        now = self._ended()
        self._count = 1 if now > self._before else self._count + 1
        self._before = now
        if self._count > self._most:
            raise ValueError(f"workers keep dying: {complaint}")
