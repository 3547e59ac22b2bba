"""States behind a URL, and signs of who trains towards one.

    KEY.tar      a state: the files of its folder in one object, ``about.json`` first
    KEY.alive    a lease: whose it is, and a word that changes while its owner trains

An object comes and goes whole, and is never changed, so readers and writers need no locks. Two writers of one
state write the same, but for the times in its records. A lease is best effort: where it fails, two train the
same, and waste compute. It is judged by whether it changes, never by clocks, because those of machines
differ.
"""

from __future__ import annotations

import io
import json
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nasgrow.training.objects import BESIDE, Objects
from nasgrow.training.trunks.store import ABOUT, USED, Entry, evict, fault_in

STATE, LEASE = ".tar", ".alive"

HEAD = 64 * 1024
"""Bytes of an object that are read to learn what the state is."""

LEFT = 24 * 3600.0
"""Seconds after which what is not whole, or a lease, was left by a process that died, whatever clocks say."""


class Remote:
    """The states behind a URL. Every method may raise :class:`~nasgrow.training.objects.Away`."""

    def __init__(self, url: str) -> None:
        self._objects = Objects(url)
        self.url = self._objects.url

    def path(self, key: str) -> str:
        """Where a state is, as it may be printed."""
        return f"{self.url}/{key}{STATE}"

    def __iter__(self) -> Iterator[str]:
        """Every key whose state is there, as the store lists them."""
        return iter(self._sizes())

    def holds(self, key: str) -> bool:
        """Whether a state is there, as the store says now."""
        return self._objects.holds(key + STATE)

    def put(self, key: str, tar: Path) -> None:
        """Upload a state that :func:`pack` packed."""
        self._objects.upload(key + STATE, tar)

    def get(self, key: str, folder: Path) -> bool:
        """Download a state into an empty folder; its files are not checked. False if it is not there."""
        tar = folder / f"state{STATE}"
        if not self._objects.download(key + STATE, tar):
            return False
        try:
            _unpack(tar, folder)
        finally:
            tar.unlink(missing_ok=True)
        return True

    def drop(self, key: str) -> None:
        """Remove a state."""
        self._objects.remove(key + STATE)

    def fault(self, key: str) -> str | None:
        """What is wrong with a state; None if its files have the hashes that they were written with."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            return fault_in(folder) if self.get(key, folder) else "it is missing"

    def entries(self) -> Iterator[Entry]:
        """Every state that can be described; uses are counted where states are used, not here."""
        for key, size in self._sizes().items():
            head, written = self._objects.read(key + STATE, HEAD), self._objects.modified(key + STATE)
            about = None if head is None else _about(head)
            if about is not None:
                yield Entry(key, size, 0, time.time() if written is None else written, about)

    def size(self) -> int:
        """Bytes of all states."""
        return sum(self._sizes().values())

    def prune(self, limit: float) -> int:
        """Remove the least valuable states until ``limit`` bytes or less are left; returns how many went."""
        doomed = evict(self.entries(), limit, time.time())
        for key in doomed:
            self.drop(key)
        return len(doomed)

    def sweep(self) -> None:
        """Remove what processes left that died."""
        for name in self._objects.sizes():
            if name.endswith((LEASE, BESIDE)):
                written = self._objects.modified(name)
                if written is not None and time.time() - written > LEFT:
                    self._objects.remove(name)

    def claim(self, key: str, owner: str) -> str | None:
        """Lease the training towards a state; None if that worked, else the lease that another one has."""
        said = self._said(key)
        if said is None and self._objects.create(key + LEASE, _lease(owner)):
            return None
        if said is None:
            said = self._said(key) or ""  # somebody was faster
        if said.split(" ")[0] != owner:
            return said
        self.seize(key, owner)
        return None

    def seize(self, key: str, owner: str) -> None:
        """Take a lease from whoever has it, or show that its owner is alive."""
        self._objects.write(key + LEASE, _lease(owner))

    def owned(self, key: str, owner: str) -> bool:
        """Whether a lease is still its owner's."""
        said = self._said(key)
        return said is not None and said.split(" ")[0] == owner

    def release(self, key: str, owner: str) -> None:
        """Let others lease the training towards a state."""
        if self.owned(key, owner):
            self._objects.remove(key + LEASE)

    def _said(self, key: str) -> str | None:
        data = self._objects.read(key + LEASE)
        return None if data is None else data.decode(errors="replace")

    def _sizes(self) -> dict[str, int]:
        names = self._objects.sizes().items()
        return {name.removesuffix(STATE): size for name, size in names if name.endswith(STATE)}


def pack(folder: Path, tar: Path) -> None:
    """Put the files of a state into one, what is said of it first."""
    names = {path.name for path in folder.iterdir()} - {ABOUT, USED}
    with tarfile.open(tar, "w:") as archive:
        for name in (ABOUT, *sorted(names)):
            info = tarfile.TarInfo(name)
            with (folder / name).open("rb") as file:
                info.size = file.seek(0, io.SEEK_END)
                file.seek(0)
                archive.addfile(info, file)


def _unpack(tar: Path, folder: Path) -> None:
    """Put the files of a state into a folder, as far as there are any; their hashes will tell.

    Whatever is not a plain file with a plain name was not put there by :func:`pack`, and is left out.
    """
    try:
        with tarfile.open(tar, "r:") as archive:
            for member in archive:
                source = archive.extractfile(member) if member.isreg() else None
                if source is not None and Path(member.name).name == member.name != tar.name:
                    with (folder / member.name).open("wb") as file:
                        shutil.copyfileobj(source, file)
    except (tarfile.TarError, EOFError, ValueError):
        pass


def _about(head: bytes) -> dict[str, Any] | None:
    """What is said of a state, from the first bytes of its object; None if that cannot be read."""
    try:
        with tarfile.open(fileobj=io.BytesIO(head), mode="r:") as archive:
            first = archive.next()
            file = None if first is None or first.name != ABOUT else archive.extractfile(first)
            return None if file is None else dict(json.load(file))
    except (tarfile.TarError, EOFError, ValueError, TypeError):
        return None


def _lease(owner: str) -> bytes:
    return f"{owner} {secrets.token_hex(8)}".encode()
