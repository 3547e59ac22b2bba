"""The error that a user's mistake raises."""

from __future__ import annotations

from nasgrow.redact import redact

MAX_MESSAGE = 400
"""The longest message, in characters; a longer one is shortened."""

_TAIL = 120
"""Characters that are kept of its end: there a message says what would be right."""


class UserError(ValueError):
    """A mistake that the user can correct: the command line prints its message as one line.

    Every other exception is a bug, and keeps its traceback. It is a ``ValueError`` so that pydantic's
    validators report it with the field, and so that callers of the Python API catch what they expect.
    """

    def __init__(self, message: str) -> None:
        super().__init__(presentable(message))


def presentable(message: str) -> str:
    """A message as users may see it, whatever it quotes: one line, without passwords, not too long."""
    line = redact(" ".join(message.splitlines()))  # first: what is cut out could be the sign of a password
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - _TAIL - 3]}...{line[-_TAIL:]}"


class WorkerError(Exception):
    """A worker raised an exception that is no user's mistake; the message holds its traceback."""
