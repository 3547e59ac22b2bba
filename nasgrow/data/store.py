"""A cache of folders named by the hash of their settings, safe for several processes.

A process fills a ``.partial`` folder under a lock and renames it at the end. So a folder with its final name
is complete, and a ``.partial`` folder whose lock is free belongs to a process that died.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nasgrow.errors import UserError

META = "meta.json"

_PARTIAL = ".partial"
_HASHED = 32_000_000  # bytes; hashing a larger file each time it is opened would be slow


def default_cache() -> Path:
    """Return ``$NASGROW_CACHE``, or ``~/.cache/nasgrow`` if it is unset or empty.

    Raises:
        UserError: The path begins with ``~``, and there is no home folder.
    """
    path = os.path.expanduser(os.environ.get("NASGROW_CACHE") or "~/.cache/nasgrow")
    if path.startswith("~"):
        raise UserError(f"NASGROW_CACHE: there is no home folder for {path!r}: set it to an absolute path")
    return Path(path)


def fingerprint(description: Mapping[str, object]) -> str:
    """Return the first 16 hexadecimal digits of the hash of a JSON description."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class CacheEntry:
    """A complete folder of the cache, and the facts recorded when it was made."""

    folder: Path
    info: Mapping[str, Any]


class FolderCache:
    """The folders of one cache."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, name: str) -> CacheEntry | None:
        """Return the folder of that name; None if it is missing or damaged.

        Every file must have its recorded size, and a small file its recorded hash.
        """
        folder = self.root / name
        try:
            meta = json.loads((folder / META).read_bytes())
            whole = meta["name"] == name and all(
                _facts(folder / file) == facts for file, facts in meta["files"].items()
            )
            return CacheEntry(folder, dict(meta["info"])) if whole else None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None

    def entries(self) -> Iterator[CacheEntry]:
        """Yield all complete and undamaged folders, the newest first."""
        metas = sorted(self.root.glob(f"*/{META}"), key=lambda path: path.stat().st_mtime, reverse=True)
        return (entry for meta in metas if (entry := self.find(meta.parent.name)))

    def get(
        self, name: str, make: Callable[[Path], Mapping[str, object]], report: Callable[[str], None]
    ) -> CacheEntry:
        """Return a folder of the cache. Only one process makes it, if it is missing or damaged.

        Args:
            name: The folder's name.
            make: Called with an empty folder to fill; returns facts to record about it, as JSON. Its
                subfolders are scratch space, which is removed afterwards.
            report: Called with a line if this process has to wait for another one.

        Raises:
            UserError: The cache cannot be written, or ``make`` raised an ``OSError``.
        """
        if entry := self.find(name):
            return entry
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with self._locked(name, report):
                # Another process may have made it while this one waited for the lock.
                return self.find(name) or self._make(name, make)
        except OSError as error:
            raise UserError(
                f"cannot write the data cache in {str(self.root)!r}: {error.strerror or error}; "
                "make room there, or set NASGROW_CACHE to another folder"
            ) from None

    def _make(self, name: str, make: Callable[[Path], Mapping[str, object]]) -> CacheEntry:
        self._sweep()
        partial, folder = self.root / (name + _PARTIAL), self.root / name
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            info = make(partial)
            for path in partial.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
            files = {path.name: _facts(path) for path in sorted(partial.iterdir())}
            meta = {"name": name, "files": files, "info": info}
            (partial / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
            for path in [*partial.iterdir(), partial]:
                _sync(path)  # or a power cut could leave the name without the content
            shutil.rmtree(folder, ignore_errors=True)  # it failed the check in `find`
            partial.rename(folder)
            _sync(self.root)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        entry = self.find(name)
        assert entry is not None, folder
        return entry

    @contextmanager
    def _locked(self, name: str, report: Callable[[str], None]) -> Iterator[None]:
        from filelock import FileLock, Timeout

        lock = FileLock(self.root / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report("waiting for another process that prepares the same data")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _sweep(self) -> None:
        """Remove the ``.partial`` folders of processes that died."""
        from filelock import FileLock, Timeout

        for partial in self.root.glob("*" + _PARTIAL):
            lock = FileLock(self.root / f"{partial.name.removesuffix(_PARTIAL)}.lock")
            try:
                with lock.acquire(timeout=0):
                    shutil.rmtree(partial, ignore_errors=True)
            except Timeout:
                continue  # its process is still running


def _facts(path: Path) -> dict[str, object]:
    """Return the size of a file, and its hash if it is small, by which damage is found."""
    size = path.stat().st_size
    if size > _HASHED:
        return {"bytes": size}
    with path.open("rb") as file:
        return {"bytes": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
