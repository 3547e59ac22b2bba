"""How much of one split's text stands in another's, word for word: a loss on such text rewards memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

WINDOW = 64
"""Bytes that are compared: a power of two."""

WINDOWS = 65_536
"""No more windows are looked for, evenly spaced: their share is then known to half a percent."""

_CHUNK = 1 << 16
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_TABLE_BITS = 20
_SHIFT = np.uint64(64 - _TABLE_BITS)

Hashes = NDArray[np.uint64]


def overlap(texts: Iterable[bytes], training: Iterable[bytes]) -> float | None:
    """The share of the windows of some texts that occur anywhere in training texts.

    Windows follow each other within a text without gaps; what is left at its end is no window.

    Args:
        texts: Those whose windows are looked for.
        training: Those in which they are looked for, at every byte.

    Returns:
        A share from 0 to 1; None if no text is as long as a window.
    """
    cut = [hashes[::WINDOW] for text in texts for hashes in _hashes(text)]
    every = np.concatenate(cut) if cut else np.zeros(0, dtype=np.uint64)
    if not len(every):
        return None
    every = every[:: -(-len(every) // WINDOWS)]
    wanted, counts = np.unique(every, return_counts=True)
    # Most windows of the training text match none: a table of their first bits rules them out at once.
    maybe = np.zeros(1 << _TABLE_BITS, dtype=bool)
    maybe[wanted >> _SHIFT] = True
    found = np.zeros(len(wanted), dtype=bool)
    for hashes in (hashes for text in training for hashes in _hashes(text)):
        likely = hashes[maybe[hashes >> _SHIFT]]
        places = np.minimum(np.searchsorted(wanted, likely), len(wanted) - 1)
        found[places[wanted[places] == likely]] = True
    return float(counts[found].sum() / counts.sum())


def _hashes(text: bytes) -> Iterator[Hashes]:
    """A hash of the window at each byte of a text, in order; all but the last array are multiples of it.

    The hash of twice as many bytes is made of the hashes of both halves, for all places at once.
    """
    data = np.frombuffer(text, dtype=np.uint8)
    for start in range(0, len(data) - WINDOW + 1, _CHUNK):
        hashes = data[start : start + _CHUNK + WINDOW - 1].astype(np.uint64)
        factor, length = _FACTOR, 1
        with np.errstate(over="ignore"):
            while length < WINDOW:
                hashes = hashes[:-length] * factor + hashes[length:]
                factor, length = factor * factor, 2 * length
        yield hashes
