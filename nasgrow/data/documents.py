"""Documents on disk: collected in any order, put in one that their content alone decides, cut into splits.

Text can be larger than memory: it goes through a file, and what is kept here is a few numbers a document.
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

_DIGEST = 16
_REPORT_EVERY = 100_000_000  # bytes


@dataclass(frozen=True)
class Documents:
    """Documents that all differ, in the order of their hashes: a shuffle that their content alone decides."""

    data: np.memmap[Any, np.dtype[np.uint8]]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sizes)

    def read(self, index: int) -> bytes:
        """The text of one document, as UTF-8."""
        start = self.starts[index]
        return self.data[start : start + self.sizes[index]].tobytes()

    def read_all(self, indices: Iterable[int]) -> Iterator[bytes]:
        """The texts of several documents."""
        return map(self.read, indices)


def collect(texts: Iterable[bytes], path: Path, report: Callable[[str], None]) -> Documents:
    """Write texts to a file and index them: NUL bytes, empty texts and repeated texts are dropped.

    Raises:
        UserError: Fewer than one document for each split.
    """
    sizes, digests = array("q"), bytearray()
    with path.open("wb") as file:
        for text in counted(texts, "read", report):
            clean = text.replace(b"\0", b"")
            if not clean:
                continue
            file.write(clean)
            sizes.append(len(clean))
            digests += hashlib.blake2b(clean, digest_size=_DIGEST).digest()
    all_sizes = np.array(sizes, dtype=np.int64)
    keys = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.any(keys[order[1:]] != keys[order[:-1]], axis=1)
    kept = order[new]
    if len(kept) < len(SPLITS):
        raise UserError(
            f"data.text: found {len(kept)} different documents that are not empty; "
            f"{', '.join(SPLITS[:-1])} and {SPLITS[-1]} need at least one each, so {len(SPLITS)}"
        )
    starts = np.cumsum(all_sizes) - all_sizes
    return Documents(np.memmap(path, dtype=np.uint8, mode="r"), starts[kept], all_sizes[kept])


def counted(texts: Iterable[bytes], done: str, report: Callable[[str], None]) -> Iterator[bytes]:
    """The same texts; every 100 MB, reports how much is done."""
    total, reported = 0, 0
    for text in texts:
        yield text
        total += len(text)
        if total - reported >= _REPORT_EVERY:
            reported = total
            report(f"{done} {total / 1e6:.0f} MB of text")


def split(sizes: NDArray[np.int64], *, validation: float, test: float) -> dict[str, NDArray[np.int64]]:
    """Cut documents into ranges by share of their bytes, each with at least one: their indices by split.

    Documents larger than the smaller share come first, so that they train: in a short split one of them would
    be most of what is measured, and could leave little to train on.
    """
    count = len(sizes)
    assert count >= len(SPLITS), count
    ends = np.cumsum(sizes)
    large = sizes > min(validation, test) * int(ends[-1])
    order = np.argsort(~large, kind="stable")
    ends = np.cumsum(sizes[order])

    def boundary(share: float, least: int, most: int) -> int:
        """The number of documents whose bytes come nearest to a share of all."""
        goal = share * float(ends[-1])
        nearest = int(np.argmin(np.abs(ends - goal))) + 1
        return min(max(nearest, least), most)

    first = boundary(1 - validation - test, 1, count - 2)
    second = boundary(1 - test, first + 1, count - 1)
    return dict(zip(SPLITS, np.split(order, [first, second]), strict=True))
