"""Cut windows out of a token array: random ones for training, fixed ones for evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nasgrow.errors import UserError


def batch(
    tokens: np.ndarray[Any, Any], *, seed: int, step: int, count: int, length: int
) -> NDArray[np.int64]:
    """Return ``count`` windows of ``length + 1`` tokens whose positions depend on seed and step alone.

    The generator is counter-based, keyed by seed and step. It carries no state from one step to the next, so
    a run that resumes or skips steps sees the same batches. Positions are computed from its raw words,
    because numpy only promises these to stay the same between versions.

    Args:
        tokens: The token array of a split.
        seed: The run's seed, from 0 up to 2^64.
        step: The step's number, from 0 up to 2^64.
        count: The number of windows.
        length: The number of tokens to predict in each; a window holds one more.

    Raises:
        UserError: The split is shorter than one window, or an argument is out of range.
    """
    if not (0 <= seed < 2**64 and 0 <= step < 2**64):
        raise UserError(f"seed and step must be from 0 up to 2^64, not {seed!r} and {step!r}")
    places = _places(tokens, count, length)
    words = np.random.Philox(key=np.array([seed, step], dtype=np.uint64)).random_raw(count)
    # The remainder favours small positions, but by less than places / 2^64: far too little to matter.
    return _cut(tokens, (words % np.uint64(places)).astype(np.int64), length)


def evaluation_windows(tokens: np.ndarray[Any, Any], *, count: int, length: int) -> NDArray[np.int64]:
    """Return up to ``count`` windows of ``length + 1`` tokens, evenly spaced and without overlap.

    The windows depend on the arguments alone, so losses on them are comparable. A split that is too
    short for ``count`` windows gives as many as fit.

    Raises:
        UserError: The split is shorter than one window, or an argument is out of range.
    """
    room = _places(tokens, count, length) - 1
    fitting = min(count, len(tokens) // (length + 1))
    # Spread over the whole split: the first window starts at its start, the last ends at its end.
    starts = np.arange(fitting, dtype=np.int64) * room // max(fitting - 1, 1)
    return _cut(tokens, starts, length)


def _places(tokens: np.ndarray[Any, Any], count: int, length: int) -> int:
    """Return the number of positions at which a window can start.

    Raises:
        UserError: The split is shorter than one window, or ``count`` or ``length`` is below 1.
    """
    if count < 1 or length < 1:
        raise UserError(f"count and length of windows must be at least 1, not {count!r} and {length!r}")
    places = len(tokens) - length
    if places < 1:
        raise UserError(
            f"a window needs {length + 1} tokens and the split has {len(tokens)}: "
            "use a shorter context, more text, or a larger share of it for this split"
        )
    return places


def _cut(tokens: np.ndarray[Any, Any], starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    # A view of all windows that shares the tokens' memory, so that a row is copied as one block. It is built
    # by hand because numpy's sliding_window_view takes longer to set up than a small batch takes to copy.
    array = np.ascontiguousarray(tokens)
    shape = (len(array) - length, length + 1)
    windows: np.ndarray[Any, Any] = np.ndarray(shape, array.dtype, array, strides=array.strides * 2)
    return windows[starts].astype(np.int64)
