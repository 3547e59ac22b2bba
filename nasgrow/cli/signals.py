"""Handle Ctrl-C and SIGTERM: let a training save before it stops."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Catch Ctrl-C and SIGTERM in the body; a second Ctrl-C raises ``KeyboardInterrupt``.

    A second SIGTERM has no further effect.

    Yields:
        A function that returns whether a signal arrived, which the training loop polls.
    """
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if signal.SIGINT in asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
