"""Collect documents on disk, shuffle them by the hashes of their content, and divide them into splits.

Text may be larger than memory. It is written to a file; memory holds a few numbers per document.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nasgrow.errors import UserError

SPLITS = ("train", "validation", "test")

PIECES = 100
"""The approximate number of pieces into which one or two texts are cut."""

LEAST_PIECE = 100
"""The smallest average size of a piece, in bytes."""

_DIGEST = 16
_REPORT_EVERY = 100_000_000  # bytes


@dataclass(frozen=True)
class Documents:
    """Distinct documents in the order of their hashes: a shuffle that depends on content alone.

    Document i is UTF-8 text of ``sizes[i]`` bytes from ``starts[i]`` on in ``data``.
    """

    data: np.memmap[Any, np.dtype[np.uint8]]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    cut_from: int | None = None
    """The number of documents before they were cut by position; None if they were not cut."""

    def __len__(self) -> int:
        return len(self.sizes)

    def read(self, index: int) -> bytes:
        """Return the text of one document, as UTF-8."""
        start = self.starts[index]
        return self.data[start : start + self.sizes[index]].tobytes()

    def read_all(self, indices: Iterable[int]) -> Iterator[bytes]:
        """Return the texts of several documents, in the given order."""
        return map(self.read, indices)


def collect(texts: Iterable[bytes], path: Path, report: Callable[[str], None]) -> Documents:
    """Write texts to a file, without NUL bytes, and index the distinct ones that are not empty.

    One or two distinct texts are cut by position, at ends of lines, so that every split gets some
    text.

    Args:
        texts: The texts, as UTF-8.
        path: The file to write; the result maps it into memory.
        report: Called with each line of progress.

    Raises:
        UserError: There is no text, too little to cut, or the pieces are equal.
    """
    sizes, digests = array("q"), bytearray()
    with path.open("wb") as file:
        for text in counted(texts, "read", report):
            clean = text.replace(b"\0", b"")
            if not clean:
                continue
            file.write(clean)
            sizes.append(len(clean))
            digests += _digest(clean)
    all_sizes = np.array(sizes, dtype=np.int64)
    kept = _shuffled(digests)
    starts, all_sizes = (np.cumsum(all_sizes) - all_sizes)[kept], all_sizes[kept]
    if len(kept) >= len(SPLITS):
        return Documents(np.memmap(path, dtype=np.uint8, mode="r"), starts, all_sizes)
    size, least = int(all_sizes.sum()), PIECES * LEAST_PIECE
    if size < least:
        raise UserError(
            f"data.text: found {len(kept)} different documents that are not empty, of {size:,} bytes: "
            f"give {len(SPLITS)} or more, or at least {least:,} bytes, which are cut by position"
        )
    found = _cut(Documents(np.memmap(path, dtype=np.uint8, mode="r"), starts, all_sizes))
    report(
        f"{len(kept)} document{'s' if len(kept) > 1 else ''}: cut by position into {len(found)} pieces, at "
        "ends of lines, which are divided among the splits"
    )
    return found


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_DIGEST).digest()


def _shuffled(digests: bytes | bytearray) -> NDArray[np.int64]:
    """Return the indices of distinct documents, sorted by their hashes."""
    keys = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.any(keys[order[1:]] != keys[order[:-1]], axis=1)
    kept: NDArray[np.int64] = order[new]
    return kept


def _cut(documents: Documents) -> Documents:
    """Cut documents into about ``PIECES`` pieces, each up to the end of a line if one is near.

    Raises:
        UserError: Fewer than three pieces are different.
    """
    length = -(-int(documents.sizes.sum()) // PIECES)
    starts, sizes, digests = array("q"), array("q"), bytearray()
    for index in range(len(documents)):
        text, begin = documents.read(index), 0
        while begin < len(text):
            end = _line_end(text, begin + length, length) if begin + length < len(text) else len(text)
            starts.append(int(documents.starts[index]) + begin)
            sizes.append(end - begin)
            digests += _digest(text[begin:end])
            begin = end
    kept = _shuffled(digests)
    if len(kept) < len(SPLITS):
        raise UserError("data.text: the text repeats itself: its pieces are the same")
    return Documents(
        documents.data,
        np.array(starts, dtype=np.int64)[kept],
        np.array(sizes, dtype=np.int64)[kept],
        cut_from=len(documents),
    )


def _line_end(text: bytes, at: int, most: int) -> int:
    """Return the end of the line at ``at``, or the end of the character if the line goes on too long.

    Too long is more than ``most`` bytes.
    """
    end = text.find(b"\n", at, at + most) + 1
    if end:
        return end
    while at < len(text) and text[at] & 0xC0 == 0x80:  # within a character
        at += 1
    return at


def counted(texts: Iterable[bytes], done: str, report: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the texts unchanged, and report progress every 100 MB.

    Each line begins with ``done``, which says what was done with the text.
    """
    total, reported = 0, 0
    for text in texts:
        yield text
        total += len(text)
        if total - reported >= _REPORT_EVERY:
            reported = total
            report(f"{done} {total / 1e6:.0f} MB of text")


def split(sizes: NDArray[np.int64], *, validation: float, test: float) -> dict[str, NDArray[np.int64]]:
    """Divide documents among the splits by share of their bytes; return the indices of each split.

    Every split gets at least one document. Documents larger than the smaller of the two shares go to the
    training split, if possible: such a document would dominate a short split, and could leave
    little to train on.

    Args:
        sizes: The size of each document, in bytes; at least three.
        validation: The share of the validation split.
        test: The share of the test split.
    """
    count = len(sizes)
    assert count >= len(SPLITS), count
    ends = np.cumsum(sizes)
    large = sizes > min(validation, test) * int(ends[-1])
    order = np.argsort(~large, kind="stable")
    ends = np.cumsum(sizes[order])

    def boundary(share: float, least: int, most: int) -> int:
        """Return the number of documents whose bytes together are nearest to a share of all bytes.

        It is at least ``least`` and at most ``most``.
        """
        goal = share * float(ends[-1])
        nearest = int(np.argmin(np.abs(ends - goal))) + 1
        return min(max(nearest, least), most)

    first = boundary(1 - validation - test, 1, count - 2)
    second = boundary(1 - test, first + 1, count - 1)
    return dict(zip(SPLITS, np.split(order, [first, second]), strict=True))
