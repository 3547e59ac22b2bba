"""The store: training states in folders named by their keys.

    AB/ABCDEF...      the state with the key ABCDEF...: the files that the caller of ``put`` writes, and
        about.json    a description, for people and for eviction
        SHA256SUMS    the hash of every file, as sha256sum writes and checks it
        used          one byte for each use; the file's time is that of the last use
    .locks            locks, released by the system when a process dies
    .new, .old        states that are being written or removed

There is no index that could be wrong: a state exists if its folder exists. A new folder is renamed into its
place once it is complete. To remove a state, its folder is renamed first and deleted after. No file is
flushed to disk: the hashes reveal files that a power cut damaged, and their states are trained again.
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
        uses: How often a run continued from it.
        used: The time of its last use, or of its writing, in seconds since the epoch.
        about: Its description. Eviction needs two fields: ``charged``, its FLOPs, and ``before``, the keys
            and FLOPs of earlier states of the same training.
    """

    key: str
    size: int
    uses: int
    used: float
    about: dict[str, Any]


class StateStore:
    """Stores training states; several studies and processes may share one store.

    Args:
        root: The folder of the store.
        limit: The size in bytes beyond which states are evicted.
    """

    def __init__(self, root: Path, limit: float) -> None:
        self.root, self.limit = root, limit
        self._unseen: float | None = None

    def path(self, key: str) -> Path:
        """Return the folder of a state, whether or not the state exists."""
        return self.root / key[:2] / key

    def holds(self, key: str) -> bool:
        """Return whether a state exists. It may be damaged: :meth:`take` checks that.

        Searches call this thousands of times for each trial, so it makes no ``Path``.
        """
        return os.path.isdir(f"{self.root}/{key[:2]}/{key}")

    def latest(self, keys: Sequence[str]) -> int | None:
        """Return the index of the last key whose state exists; None if there is none."""
        return next((place for place in reversed(range(len(keys))) if self.holds(keys[place])), None)

    @property
    def empty(self) -> bool:
        """Whether the store has no state."""
        return next(iter(self), None) is None

    def try_lock(self, key: str) -> BaseFileLock | None:
        """Acquire the lock of a key without waiting; return None if another process holds it.

        A process holds the lock while it trains towards the state or writes it. Keys that begin with the
        same characters share a lock, so that the number of lock files stays bounded.
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
        """Send a heartbeat: show processes that wait for the lock of a key that its holder is alive."""
        with suppress(OSError):
            self._pulse(key).touch()

    def last_beat(self, key: str) -> float:
        """Return the time of the last heartbeat for the lock of a key, by the file system; 0 if none.

        It may be that of an earlier holder, or of another key that has the same lock.
        """
        try:
            return self._pulse(key).stat().st_mtime
        except OSError:
            return 0.0

    def _pulse(self, key: str) -> Path:
        return self._lock_path(key).with_suffix(".alive")  # trying a lock touches the lock's own file

    def _lock_path(self, key: str) -> Path:
        return self.root / _LOCKS / key[:3]

    def put(self, key: str, write: Callable[[Path], None], about: dict[str, Any]) -> None:
        """Store a state, unless it is stored already. The caller must hold its lock.

        If the store has outgrown its limit, states are evicted.

        Args:
            key: The key.
            write: Called with a folder; writes the state's files into it.
            about: The description of the state.

        Raises:
            OSError: The state cannot be written; no part of it remains.
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
        """Return what is wrong with a state's files; None if all still have the hashes from their writing."""
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
        """Return the folder of a state if its files are intact; None if it is missing or damaged.

        Files are compared with the hashes that were recorded when the state was written. A use is
        recorded, because eviction spares states that are used often and recently. A damaged state
        is removed with a warning.

        Args:
            key: The state's key.
            warn: Called with the warning.
        """
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
        """Remove a state, if it exists. It stays, without an error, if it cannot be renamed."""
        old = self.root / _OLD / f"{key}.{secrets.token_hex(4)}"
        old.parent.mkdir(exist_ok=True)
        with suppress(OSError):  # another process was faster
            self.path(key).rename(old)
        if old.is_symlink():
            old.unlink()
        shutil.rmtree(old, ignore_errors=True)

    def __iter__(self) -> Iterator[str]:
        """Yield the key of every state. Links, and folders with other names, are ignored."""
        for shard in _folders(self.root):
            if len(shard.name) == 2:
                names = (entry.name for entry in _folders(Path(shard.path)))
                yield from (name for name in names if _KEY.fullmatch(name) and name.startswith(shard.name))

    def entries(self) -> Iterator[CachedState]:
        """Yield every state with a readable description."""
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
        """Return the size of all states in bytes."""
        return sum(_size(self.path(key)) for key in self)

    def prune(self, limit: float) -> int:
        """Evict states until at most ``limit`` bytes are left; return the number of removed states.

        States without a readable description go first, all of them; then the least valuable ones. If another
        process is pruning the store, do nothing and return 0.
        """
        lock = self.try_lock("prune")
        if lock is None:
            return 0  # another process is at it
        try:
            keys = list(self)  # before the entries: another process may put a state in between
            entries = list(self.entries())
            known = {entry.key for entry in entries}
            nameless = [key for key in keys if key not in known]  # they have no known value, but take space
            doomed = [*nameless, *evict(entries, limit, time.time())]
            for key in doomed:
                self.drop(key)
            return len(doomed)
        finally:
            lock.release()

    def sweep(self) -> None:
        """Remove the remains of processes that died while they wrote or removed a state."""
        for left in _folders(self.root / _OLD):
            shutil.rmtree(left.path, ignore_errors=True)
        for left in _folders(self.root / _NEW):
            lock = self.try_lock(left.name)
            if lock is not None:
                shutil.rmtree(left.path, ignore_errors=True)
                lock.release()

    def _grown(self, size: int) -> None:
        """Count the bytes of a new state, and evict states if the store has outgrown its limit.

        Measuring the store reads the size of every file. So it is measured only after this process has
        written the share ``UNSEEN`` of the limit.
        """
        if self._unseen is not None and self._unseen + size < UNSEEN * self.limit:
            self._unseen += size
            return
        self._unseen = 0.0
        if self.size() > self.limit:
            self.prune(AFTER_EVICTION * self.limit)


def evict(entries: Iterable[CachedState], limit: float, now: float) -> list[str]:
    """Return the keys to remove, least valuable first, so that the other states fit ``limit`` bytes.

    The value of a state is saved FLOPs * (1 + uses) / size / (60 + seconds since its last use). The saved
    FLOPs are those between the latest earlier state of the same training that is still stored and this one.
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
        if now_worth > believed:  # an earlier state was evicted, so this one saves more
            heapq.heappush(waiting, (now_worth, key))
            continue
        doomed.append(key)
        size -= there.pop(key).size
    return doomed


def _short(name: str) -> str:
    """Return the name of a file in a form that is safe to print: short, and without control characters."""
    return name if name.isprintable() and len(name) <= 60 else ascii(name)[:60]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_about(about: object) -> bool:
    """Return whether a description has the fields that eviction needs."""
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
