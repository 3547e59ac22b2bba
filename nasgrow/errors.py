"""Exceptions: user mistakes, which print as one line, and failures of workers."""

from __future__ import annotations

from nasgrow.redact import redact

MAX_MESSAGE = 400
"""The most characters of a message; a longer one is shortened in the middle."""

_TAIL = 120
"""The characters kept at the end of a shortened message, because it ends with what would be right."""


class UserError(ValueError):
    """A mistake that the user can correct. The command line prints its message as one line.

    Any other exception that reaches the command line is a bug, and keeps its traceback. The class
    derives from ``ValueError``, so that pydantic reports it with the field, and so that callers of
    the Python API can catch a usual class.
    """

    def __init__(self, message: str) -> None:
        super().__init__(presentable(message))


def presentable(message: str) -> str:
    """Make a message fit to print: one line, no secrets, at most :data:`MAX_MESSAGE` characters."""
    line = redact(" ".join(message.splitlines()))  # before shortening, which might hide where a password is
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - _TAIL - 3]}...{line[-_TAIL:]}"


class WorkerError(Exception):
    """A worker raised an exception that is not a user's mistake; the message holds its traceback."""
