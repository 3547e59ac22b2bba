"""Objects behind a URL: named files in any store that fsspec reaches, each there whole or not at all.

Object stores make an object visible when all of it is there. Where a file is visible while it is written, it
is written beside its place and renamed. Whatever may go wrong behind a URL becomes one kind of error, in one
line, without secrets.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nasgrow.strict import redact

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

BESIDE = ".tmp"
"""How the names of files end that are not whole yet."""


class Away(OSError):  # noqa: N818
    """A store cannot be reached, or will not do what it was asked."""


def is_url(place: str) -> bool:
    """Whether a place is a URL, and not a path."""
    return "://" in place


def check_url(url: str) -> None:
    """See whether what reaches a URL is installed; nothing is reached.

    Raises:
        ValueError: It is not, or nothing is known that would.
    """
    import fsspec

    protocol = fsspec.core.split_protocol(url.rsplit("::", maxsplit=1)[-1])[0]
    try:
        if not protocol:
            raise ValueError
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise ValueError(f"{redact(url)!r} needs a package that is not installed: {_line(error)}") from None
    except ValueError:
        known = ", ".join(f"{name}://" for name in ("s3", "gs", "az", "sftp", "file"))
        raise ValueError(f"{redact(url)!r} is no URL that fsspec knows, such as {known}") from None


class Objects:
    """The objects right below a URL. Every method may raise :class:`Away`.

    Attributes:
        url: The URL, as it may be printed.
    """

    def __init__(self, url: str) -> None:
        check_url(url)
        self.url, self._given = redact(url).rstrip("/"), url
        self._opened: tuple[AbstractFileSystem, str] | None = None

    def sizes(self) -> dict[str, int]:
        """The names of all objects and their bytes, as the store lists them."""
        with self._reach() as (fs, root):
            fs.invalidate_cache(root)
            try:
                found = fs.ls(root, detail=True)
            except FileNotFoundError:
                return {}
            return {Path(one["name"]).name: int(one["size"] or 0) for one in found if one["type"] == "file"}

    def holds(self, name: str) -> bool:
        """Whether an object is there, as the store says now."""
        with self._reach() as (fs, root):
            fs.invalidate_cache(root)
            try:
                fs.info(f"{root}/{name}")
            except FileNotFoundError:
                return False
            return True

    def modified(self, name: str) -> float | None:
        """When an object was written, in seconds since the epoch; None if the store does not say."""
        with self._reach() as (fs, root):
            try:
                return float(fs.modified(f"{root}/{name}").timestamp())
            except (NotImplementedError, FileNotFoundError):
                return None

    def read(self, name: str, most: int | None = None) -> bytes | None:
        """An object, or its first bytes; None if it is not there."""
        with self._reach() as (fs, root):
            try:
                return bytes(fs.cat_file(f"{root}/{name}", start=None if most is None else 0, end=most))
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Write a small object."""
        with self._reach() as (fs, root):
            self._make(fs, root)
            fs.pipe_file(f"{root}/{name}", data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small object if there is none of the name; of several at once, one does, if the store can.

        Returns:
            Whether it was written.
        """
        with self._reach() as (fs, root):
            self._make(fs, root)
            try:
                if _renames(fs):
                    with fs.open(f"{root}/{name}", "xb") as file:
                        file.write(data)
                else:
                    fs.pipe_file(f"{root}/{name}", data, mode="create")
            except FileExistsError:
                return False
            return True

    def upload(self, name: str, path: Path) -> None:
        """Write an object from a file."""
        with self._reach() as (fs, root):
            self._make(fs, root)
            if not _renames(fs):
                fs.put_file(str(path), f"{root}/{name}")
                return
            beside = f"{root}/.{name}.{secrets.token_hex(4)}{BESIDE}"
            try:
                fs.put_file(str(path), beside)
                fs.mv(beside, f"{root}/{name}")
            except BaseException:
                with suppress(Exception):
                    fs.rm_file(beside)
                raise

    def download(self, name: str, path: Path) -> bool:
        """Read an object into a file; False if it is not there."""
        with self._reach() as (fs, root):
            try:
                fs.get_file(f"{root}/{name}", str(path))
            except FileNotFoundError:
                return False
            return True

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        with self._reach() as (fs, root), suppress(FileNotFoundError):
            fs.rm_file(f"{root}/{name}")

    @contextmanager
    def _reach(self) -> Iterator[tuple[AbstractFileSystem, str]]:
        """The file system and the path in it; any error on the way is that of a store that is away."""
        import fsspec

        try:
            if self._opened is None:
                fs, root = fsspec.url_to_fs(self._given)
                self._opened = fs, root.rstrip("/")
            yield self._opened
        except Exception as error:  # every store has errors of its own
            raise Away(errno.EIO, _line(error), self.url) from None

    def _make(self, fs: AbstractFileSystem, root: str) -> None:
        """Make the folder where there are folders; a bucket is its owner's to make."""
        if _renames(fs):
            fs.makedirs(root, exist_ok=True)


def _renames(fs: Any) -> bool:
    """Whether files have a rename of their own; else moving is copying, and an object is put whole."""
    from fsspec import AbstractFileSystem

    return type(fs).mv is not AbstractFileSystem.mv


def _line(error: BaseException) -> str:
    """What an error says, in a line, without secrets."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return redact(said.strip().splitlines()[0])
