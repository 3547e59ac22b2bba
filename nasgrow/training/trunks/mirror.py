"""A store with a second tier behind a URL, which machines that share no folder share.

A process works in the folder, as with any store. What is not there is looked for behind the URL, downloaded
beside, checked, and given its place. What is stored is uploaded by a thread, so that training does not wait.
Locks bind the processes that share the folder; those of several folders are bound by leases, which belong to
a folder, so that whoever has its lock may take up the lease of one that died.

Nothing that happens behind the URL ends a run or changes its result: while it cannot be reached, the folder
alone is used.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from nasgrow.training.files import write_text
from nasgrow.training.objects import Away
from nasgrow.training.trunks.remote import Remote, pack
from nasgrow.training.trunks.store import Held, Store, fault_in

LISTING = 10.0
"""Seconds for which a list of what is behind the URL is good."""

LISTING_SHARE = 0.005
"""The share of the time that may go into listing: a long list is good for longer."""

LOOK = 2.0
"""Seconds between two looks at the lease of another."""

PULSE = 10.0
"""Seconds between two signs of life of a lease."""

SILENCE = 60.0
"""Seconds without a sign of life after which a lease may be taken from its owner, or given up by it."""

WAITING = 8
"""States that may wait to be uploaded; further ones are not."""

PAUSE, LONGEST_PAUSE = 30.0, 3600.0
"""Seconds for which a URL is left alone that could not be reached; twice as many each time in a row."""

PATIENCE = 120.0
"""Seconds to wait for a transfer of another process that shares the folder."""

SETTLING, STOPPING = 300.0, 10.0
"""Seconds for which a run that ended waits for an upload, and one that was stopped."""

OWNER = ".owner"
"""The file in the folder that names it in leases."""

Found = TypeVar("Found")


@dataclass
class _Wait:
    """What was seen of a lease that another one has."""

    said: str
    heard: float
    again: float = 0.0


@dataclass(frozen=True)
class _Leased:
    """The lock of a key in the folder, and its lease."""

    lock: Held
    free: Callable[[], None]

    def release(self) -> None:
        self.lock.release()
        self.free()


class Mirrored(Store):
    """States in a folder, and behind a URL; ``limit`` holds for the folder."""

    def __init__(self, root: Path, limit: float, remote: Remote) -> None:
        super().__init__(root, limit)
        self._remote = remote
        self._keys: set[str] = set()
        self._relist = -math.inf
        self._useless: set[str] = set()
        self._waits: dict[str, _Wait] = {}
        self._mutex = threading.Lock()  # over what follows, which threads share
        self._leases: dict[str, float] = {}
        self._renewing = threading.Lock()
        self._jobs: deque[tuple[str, bool]] = deque()
        self._carrier: threading.Thread | None = None
        self._pulsing: threading.Thread | None = None
        self._again, self._pause = -math.inf, PAUSE
        self._complaints: deque[str] = deque()

    # What is there.

    @property
    def empty(self) -> bool:
        """Whether no state is there, nor was behind the URL when that was listed."""
        return super().empty and not self._keys

    def refresh(self) -> None:
        """List what is behind the URL, if the last list is not good any more."""
        began = time.monotonic()
        if began >= max(self._relist, self._again):
            self._keys = self._try(lambda: set(self._remote)) or set()
            now = time.monotonic()
            self._relist = now + max(LISTING, (now - began) / LISTING_SHARE)

    def holds(self, key: str) -> bool:
        """Whether a state is there, or was behind the URL when that was listed, and can be reached."""
        return super().holds(key) or (
            key in self._keys and key not in self._useless and time.monotonic() >= self._again
        )

    def latest(self, keys: Sequence[str]) -> int | None:
        """The place of the last key whose state is there, or behind the URL."""
        self.refresh()
        return super().latest(keys)

    def take(self, key: str, warn: Callable[[str], None]) -> Path | None:
        """The folder of a state, downloaded if need be; a damaged one is dropped and named."""
        for _ in range(2):  # what is damaged in the folder may be whole behind the URL
            if not super().holds(key):
                self._fetch(key, warn)
            folder = super().take(key, warn)
            if folder is not None:
                if key not in self._keys:
                    self._offer(key)
                return folder
        if self.holds(key):
            self._useless.add(key)  # evicted as soon as it came
        return None

    def drop(self, key: str) -> None:
        """Do without a state that is of no use."""
        super().drop(key)
        self._useless.add(key)

    def put(self, key: str, write: Callable[[Path], None], about: dict[str, object]) -> None:
        """Store a state whose lock is held, and let it be uploaded."""
        super().put(key, write, about)
        self._offer(key)

    def _fetch(self, key: str, warn: Callable[[str], None]) -> None:
        """Download a state, if it can be had and is whole."""
        with self._alone(f"get-{key}") as beside:
            if beside is None or super().holds(key) or not self.holds(key):
                return  # another process had it downloaded
            there = self._try(partial(self._remote.get, key, beside))
            if not there:
                self._keys.discard(key)
                return
            fault = fault_in(beside)
            if fault is None:
                self._place(key, beside)
                return
        warn(f"{self._remote.path(key)}: passed over and dropped: {fault}")
        self._useless.add(key)
        self._try(partial(self._remote.drop, key))

    # Who trains what.

    def try_lock(self, key: str, *, everywhere: bool = True) -> Held | None:
        """The lock of a key, if no other process has it, nor one of another folder its lease."""
        if not everywhere:
            return super().try_lock(key)
        wait = self._waits.get(key)
        if wait is not None and time.monotonic() < wait.again:
            return None
        lock = super().try_lock(key)
        if lock is None:
            self._waits.pop(key, None)  # the lease is this folder's
            return None
        other = self._try(partial(self._remote.claim, key, self._owner))
        if other is not None:
            if not self._silent(key, other):
                lock.release()
                return None
            self._try(partial(self._remote.seize, key, self._owner))
        self._waits.pop(key, None)
        if self._try(partial(self._remote.holds, key)):
            self._keys.add(key)  # stored since it was listed
        with self._mutex:
            self._leases[key] = time.monotonic()
            if self._pulsing is None:
                self._pulsing = _start(self._show_life)
        return _Leased(lock, partial(self._free, key))

    def beat(self, key: str) -> None:
        """Show those who wait for a key that its holder is alive."""
        super().beat(key)
        with self._mutex:
            if key in self._leases:
                self._leases[key] = time.monotonic()

    def last_beat(self, key: str) -> float:
        """When the holder of a key last showed that it is alive; only changes tell."""
        wait = self._waits.get(key)
        return super().last_beat(key) if wait is None else wait.heard

    def _silent(self, key: str, said: str) -> bool:
        """Whether the owner of a lease has shown no life for too long."""
        now = time.monotonic()
        wait = self._waits.get(key)
        if wait is None or wait.said != said:
            wait = self._waits[key] = _Wait(said, now)
        wait.again = now + LOOK
        return now - wait.heard > SILENCE

    @cached_property
    def _owner(self) -> str:
        """The name of the folder in leases."""
        path = self.root / OWNER
        try:
            if not path.exists():
                write_text(path, secrets.token_hex(8))
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return secrets.token_hex(8)  # a process alone then, whose leases nobody takes up at once

    def _show_life(self) -> None:
        """Renew leases while training goes on, and while their states wait to be uploaded; a thread."""
        while True:
            time.sleep(PULSE)
            with self._mutex:
                if not self._leases and not self._jobs:
                    self._pulsing = None
                    return
                now = time.monotonic()
                alive = {key for key, at in self._leases.items() if now - at < SILENCE}
                alive |= {key for key, upload in self._jobs if upload}
            for key in alive:
                with self._renewing:  # else a lease could come back that was released just now
                    if self._try(partial(self._remote.owned, key, self._owner)):
                        self._try(partial(self._remote.seize, key, self._owner))

    def _free(self, key: str) -> None:
        """Let go of a lease, once the state is uploaded if it is to be."""
        with self._mutex:
            self._leases.pop(key, None)
            self._add(key, upload=False)

    # What is done in the background.

    def settle(self, stop: Callable[[], bool]) -> None:
        """Wait until states are uploaded; not for long if asked to stop, nor without end."""
        left, asked = len(self._jobs), False
        deadline = time.monotonic() + SETTLING
        while (carrier := self._carrier) is not None and carrier.is_alive() and time.monotonic() < deadline:
            if len(self._jobs) < left and not asked:
                left, deadline = len(self._jobs), time.monotonic() + SETTLING
            if stop() and not asked:
                asked, deadline = True, time.monotonic() + STOPPING
            carrier.join(0.05)

    def tell(self, warn: Callable[[str], None]) -> None:
        """Tell what went wrong behind the URL."""
        while self._complaints:
            warn(self._complaints.popleft())

    def _offer(self, key: str) -> None:
        """Let a state be uploaded, unless too many are waiting."""
        with self._mutex:
            if sum(upload for _, upload in self._jobs) < WAITING:
                self._add(key, upload=True)

    def _add(self, key: str, *, upload: bool) -> None:
        """Add a job: to upload a state, or to release its lease; the mutex is held."""
        self._jobs.append((key, upload))
        if self._carrier is None:
            self._carrier = _start(self._carry)

    def _carry(self) -> None:
        """Do one job after the other; a thread."""
        while True:
            with self._mutex:
                if not self._jobs:
                    self._carrier = None
                    return
                key, upload = self._jobs[0]
            if upload:
                self._upload(key)
            elif key not in self._leases:  # else it was taken again
                with self._renewing:
                    self._try(partial(self._remote.release, key, self._owner))
            with self._mutex:
                self._jobs.popleft()

    def _upload(self, key: str) -> None:
        if time.monotonic() < self._again:
            return
        try:
            with self._alone(f"up-{key}") as beside:
                if beside is not None and self._try(partial(self._lacks, key)):
                    tar = beside / "state.tar"
                    pack(self.path(key), tar)
                    self._try(partial(self._send, key, tar))
        except OSError as error:
            if super().holds(key):  # else it was evicted just now
                self._complain(self.root, error)

    def _lacks(self, key: str) -> bool:
        return key in self._useless or not self._remote.holds(key)

    def _send(self, key: str, tar: Path) -> None:
        self._remote.put(key, tar)
        self._keys.add(key)
        self._useless.discard(key)

    @contextmanager
    def _alone(self, name: str) -> Iterator[Path | None]:
        """An empty folder for a transfer, one at a time in each direction; None if another takes too long."""
        deadline = time.monotonic() + PATIENCE
        while (lock := self._try_lock(name)) is None:
            if time.monotonic() > deadline:
                yield None
                return
            time.sleep(0.05)
        try:
            with self._beside(name) as beside:
                yield beside
        finally:
            lock.release()

    def _try(self, do: Callable[[], Found]) -> Found | None:
        """What is found behind the URL; None if it cannot be reached, and then it is left alone for a while.

        Stores try again by themselves, so nothing is tried again here.
        """
        if time.monotonic() < self._again:
            return None
        try:
            found = do()
        except Away as error:
            if self._pause == PAUSE:
                self._complain(self._remote.url, error)
            self._again = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            return None
        self._pause = PAUSE
        return found

    def _complain(self, where: object, error: OSError) -> None:
        said = (error.strerror or str(error)).lower()
        self._complaints.append(f"{where}: cannot be used: {said}; training goes on without it")


def _start(loop: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    return thread
