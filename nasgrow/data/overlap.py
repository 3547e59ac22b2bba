"""Measure how much of the test text occurs verbatim in the training text.

A low loss on such text may only show that a model has memorised it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

WINDOW = 64
"""The size of the windows compared, in bytes; a power of two."""

WINDOWS = 65_536
"""The most windows searched for, evenly spaced; this many give the share to within half a percent."""

_CHUNK = 1 << 16
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_TABLE_BITS = 20
_SHIFT = np.uint64(64 - _TABLE_BITS)

Hashes = NDArray[np.uint64]


def overlap(texts: Iterable[bytes], training: Iterable[bytes]) -> float | None:
    """Return the share of the windows of some texts that occur anywhere in training texts.

    The windows of a text are consecutive and do not overlap; a shorter rest at its end is ignored.
    Of more than :data:`WINDOWS` windows, only evenly spaced ones are searched for.

    Args:
        texts: The texts whose windows are searched for.
        training: The texts to search in, at every byte.

    Returns:
        A share from 0 to 1; None if no text is as long as a window.
    """
    cut = [hashes[::WINDOW] for text in texts for hashes in _hashes(text)]
    every = np.concatenate(cut) if cut else np.zeros(0, dtype=np.uint64)
    if not len(every):
        return None
    every = every[:: -(-len(every) // WINDOWS)]
    wanted, counts = np.unique(every, return_counts=True)
    # Most windows of the training text match none: a lookup table of their first bits skips them quickly.
    maybe = np.zeros(1 << _TABLE_BITS, dtype=bool)
    maybe[wanted >> _SHIFT] = True
    found = np.zeros(len(wanted), dtype=bool)
    for hashes in (hashes for text in training for hashes in _hashes(text)):
        likely = hashes[maybe[hashes >> _SHIFT]]
        places = np.minimum(np.searchsorted(wanted, likely), len(wanted) - 1)
        found[places[wanted[places] == likely]] = True
    return float(counts[found].sum() / counts.sum())


def _hashes(text: bytes) -> Iterator[Hashes]:
    """Yield arrays with the hash of the window at each byte of a text, in order.

    The length of every array but the last is a multiple of ``WINDOW``. The hash of a window is computed from
    the hashes of its halves, for all positions at once.
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
