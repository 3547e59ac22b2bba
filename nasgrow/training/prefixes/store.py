"""The store: training states in folders named by their keys.

    AB/ABCDEF...      a state, ABCDEF... being its key: whatever ``put`` was given to write, and
        about.json    what it is, for people and for eviction
        SHA256SUMS    the hash of every file, as sha256sum writes and checks it
        used          a byte for each use; its time is that of the last
    .locks            locks, released by the system when a process dies
    .new, .old        states being written, and being removed

There is no index that could be wrong: a state is there if its folder is. A folder comes into its place by
being renamed when it is whole, and leaves it by being renamed before it is taken apart. Nothing waits for
the disk, because whatever a power cut may damage is noticed by its hash and costs a retrain.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

ABOUT, SUMS, USED = "about.json", "SHA256SUMS", "used"
_NEW, _OLD, _LOCKS = ".new", ".old", ".locks"

_KEY = re.compile("[0-9a-f]{64}")

AFTER_EVICTION = 0.9
"""The share of the limit that eviction leaves."""

UNSEEN = 0.02
"""The share of the limit that a process writes before it measures the store again."""


@dataclass(frozen=True)
class CachedState:
    """A stored state.

    Attributes:
        key: Its key.
        size: Bytes.
        uses: How often a run went on from it.
        used: When that was last, or when it was written, in seconds since the epoch.
        about: Its description; ``charged`` FLOPs, and in ``before`` the keys and FLOPs of states on its
            way, are what eviction goes by.
    """

    key: str
    size: int
    uses: int
    used: float
    about: dict[str, Any]


class StateStore:
    """States of any number of studies and processes; ``limit`` is in bytes."""

    def __init__(self, root: Path, limit: float) -> None:
        self.root, self.limit = root, limit
        self._unseen: float | None = None

    def path(self, key: str) -> Path:
        """The folder of a state, whether or not it is there."""
        return self.root / key[:2] / key

    def holds(self, key: str) -> bool:
        """Whether a state is there; reading it will tell whether it is whole.

        Searches ask this thousands of times for each trial, so that making a path is avoided.
        """
        return os.path.isdir(f"{self.root}/{key[:2]}/{key}")

    def latest(self, keys: Sequence[str]) -> int | None:
        """The place of the last key whose state is there."""
        return next((place for place in reversed(range(len(keys))) if self.holds(keys[place])), None)

    @property
    def empty(self) -> bool:
        """Whether no state is there."""
        return next(iter(self), None) is None

    def try_lock(self, key: str) -> BaseFileLock | None:
        """The lock of a key, unless another process trains towards its state or writes it.

        Keys that begin alike share a lock, so that the number of lock files stays bounded.
        """
        path = self._lock_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock

    def beat(self, key: str) -> None:
        """Show those who wait for the lock of a key that its holder is alive."""
        with suppress(OSError):
            self._pulse(key).touch()

    def last_beat(self, key: str) -> float:
        """When the holder of the lock of a key last showed that it is alive, as the file system says."""
        try:
            return self._pulse(key).stat().st_mtime
        except OSError:
            return 0.0

    def _pulse(self, key: str) -> Path:
        return self._lock_path(key).with_suffix(".alive")  # trying a lock touches the lock's own file

    def _lock_path(self, key: str) -> Path:
        return self.root / _LOCKS / key[:3]

    def put(self, key: str, write: Callable[[Path], None], about: dict[str, Any]) -> None:
        """Store a state whose lock is held; ``write`` writes its files into a folder.

        Raises:
            OSError: It cannot be written; nothing is left of it.
        """
        beside = self.root / _NEW / key
        shutil.rmtree(beside, ignore_errors=True)  # of a writer that died: the lock is ours
        try:
            beside.mkdir(parents=True)
            write(beside)
            (beside / ABOUT).write_text(json.dumps(about), encoding="utf-8")
            lines = [f"{_sha256(path)}  {path.name}\n" for path in sorted(beside.iterdir())]
            (beside / SUMS).write_text("".join(lines), encoding="utf-8")
            (beside / USED).touch()
            size = _size(beside)
            self.path(key).parent.mkdir(exist_ok=True)
            if not self.path(key).is_dir():
                beside.rename(self.path(key))
            self._grown(size)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def fault(self, key: str) -> str | None:
        """What is wrong with a state's files; None if each has the hash that it was written with."""
        folder = self.path(key)
        if folder.is_symlink():
            return "it is a link"
        try:
            lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
            sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
            with os.scandir(folder) as entries:
                there = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
            # A link could lead anywhere, and a pipe would never end.
            for name in sorted(there):
                if not there[name]:
                    return f"{_short(name)} is no file"
            for name in sorted({*sums, ABOUT} - there.keys()):
                return f"{_short(name)} is missing"
            for name in sorted({*sums, *there, ABOUT} - {SUMS, USED}):
                if _sha256(folder / name) != sums.get(name):
                    return f"{_short(name)} is damaged"
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} is missing"
        except (OSError, ValueError):
            return "it cannot be read"
        return None

    def take(self, key: str, warn: Callable[[str], None]) -> Path | None:
        """The folder of a state, its files checked, its use noted; a damaged one is dropped and named."""
        fault = self.fault(key)
        if fault is None:
            with suppress(OSError), (self.path(key) / USED).open("ab") as file:
                file.write(b".")
            return self.path(key)
        if self.path(key).is_dir():  # else it was evicted just now
            warn(f"{self.path(key)}: passed over and dropped: {fault}")
            self.drop(key)
        return None

    def drop(self, key: str) -> None:
        """Remove a state."""
        old = self.root / _OLD / f"{key}.{secrets.token_hex(4)}"
        old.parent.mkdir(exist_ok=True)
        with suppress(OSError):  # another process was faster
            self.path(key).rename(old)
        if old.is_symlink():
            old.unlink()
        shutil.rmtree(old, ignore_errors=True)

    def __iter__(self) -> Iterator[str]:
        """Every key whose state is there; folders of other names, and links, are no states."""
        for shard in _folders(self.root):
            if len(shard.name) == 2:
                names = (entry.name for entry in _folders(Path(shard.path)))
                yield from (name for name in names if _KEY.fullmatch(name) and name.startswith(shard.name))

    def entries(self) -> Iterator[CachedState]:
        """Every state that can be described."""
        for key in self:
            folder = self.path(key)
            try:
                about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
                used = (folder / USED).stat()
                size = _size(folder)
            except (OSError, ValueError, RecursionError):
                continue  # removed just now, or damaged
            if size and _is_about(about):
                yield CachedState(key, size, used.st_size, used.st_mtime, about)

    def size(self) -> int:
        """Bytes of all states."""
        return sum(_size(self.path(key)) for key in self)

    def prune(self, limit: float) -> int:
        """Remove the least valuable states until ``limit`` bytes or less are left; returns how many went."""
        lock = self.try_lock("prune")
        if lock is None:
            return 0  # another process is at it
        try:
            entries = list(self.entries())
            known = {entry.key for entry in entries}
            nameless = [key for key in self if key not in known]  # of no known worth, but of a size
            doomed = [*nameless, *evict(entries, limit, time.time())]
            for key in doomed:
                self.drop(key)
            return len(doomed)
        finally:
            lock.release()

    def sweep(self) -> None:
        """Remove what processes left that died while they wrote or removed a state."""
        for left in _folders(self.root / _OLD):
            shutil.rmtree(left.path, ignore_errors=True)
        for left in _folders(self.root / _NEW):
            lock = self.try_lock(left.name)
            if lock is not None:
                shutil.rmtree(left.path, ignore_errors=True)
                lock.release()

    def _grown(self, size: int) -> None:
        """Note what was written, and evict where the store may have outgrown its limit.

        Measuring takes a look at every file, so it is done once in a while.
        """
        if self._unseen is not None and self._unseen + size < UNSEEN * self.limit:
            self._unseen += size
            return
        self._unseen = 0.0
        if self.size() > self.limit:
            self.prune(AFTER_EVICTION * self.limit)


def evict(entries: Iterable[CachedState], limit: float, now: float) -> list[str]:
    """The keys to remove, least valuable first, so that the rest is within ``limit`` bytes.

    A state is worth the FLOPs that it spares beyond the nearest state on its way, for each of its bytes,
    times one more than its uses, over the time since the last.
    """
    there = {entry.key: entry for entry in entries}
    size = sum(entry.size for entry in there.values())

    def worth(entry: CachedState) -> float:
        before = [charged for key, charged in entry.about["before"] if key in there]
        spared = entry.about["charged"] - max(before, default=0)
        return float(spared * (1 + entry.uses) / entry.size / (60 + max(0.0, now - entry.used)))

    doomed: list[str] = []
    waiting = [(worth(entry), entry.key) for entry in there.values()]
    heapq.heapify(waiting)
    while size > limit and waiting:
        believed, key = heapq.heappop(waiting)
        now_worth = worth(there[key])
        if now_worth > believed:  # a state on its way went, so it spares more
            heapq.heappush(waiting, (now_worth, key))
            continue
        doomed.append(key)
        size -= there.pop(key).size
    return doomed


def _short(name: str) -> str:
    """A name of a file, as it may be quoted."""
    return name if name.isprintable() and len(name) <= 60 else ascii(name)[:60]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_about(about: object) -> bool:
    """Whether a description is as eviction needs it."""
    if not isinstance(about, dict) or not isinstance(about.get("before"), list):
        return False
    pairs = all(
        isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in about["before"]
    )
    flops = [about.get("charged"), *(one[1] for one in about["before"])] if pairs else [None]
    return all(type(one) is int and 0 <= one < 1e30 for one in flops)


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _size(folder: Path) -> int:
    with suppress(OSError), os.scandir(folder) as files:
        return sum(file.stat().st_size for file in files)
    return 0
