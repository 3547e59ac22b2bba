"""Read text from local files, or from the sources of the Python standard library."""

from __future__ import annotations

import glob
import hashlib
import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nasgrow.config import Files
from nasgrow.data.loading import one_line, quiet_datasets, texts
from nasgrow.errors import UserError

_TABLES = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
_ARCHIVES = (".7z", ".bz2", ".lz4", ".rar", ".tar", ".tgz", ".xz", ".zip", ".zst")
_NOT_LIBRARY = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"}
_FILES_AT_ONCE = 1000


@dataclass(frozen=True)
class LocalText:
    """Text in local files, identified by their content: their paths and names do not matter."""

    source: str
    files: Mapping[Path, str]
    """The loader of ``datasets`` for each file."""
    column: str
    content: str
    """The hash of the content of all files."""

    @property
    def description(self) -> Mapping[str, object]:
        """The settings and the content hash that identify the text."""
        return {"source": self.source, "column": self.column, "content": self.content}

    def documents(self, scratch: Path) -> Iterator[bytes]:
        """Yield each text file as one document, then each row of the other files.

        Raises:
            UserError: A file cannot be read or is not UTF-8, or lacks a column of text.
        """
        plain = [path for path, loader in self.files.items() if loader == "text"]
        for start in range(0, len(plain), _FILES_AT_ONCE):
            yield from _whole_files(plain[start : start + _FILES_AT_ONCE], scratch)
        for path, loader in self.files.items():
            # One file at a time: files read together must have the same columns.
            if loader != "text":
                yield from _rows(path, loader, self.column, scratch)


def open_stdlib() -> LocalText:
    """Return the UTF-8 sources of the running interpreter's standard library.

    Installed packages do not belong to it. Tests are left out because many systems do not install them, and
    ``encodings`` because its tables repeat each other, so that test text would occur in the training text.

    Raises:
        UserError: The interpreter was installed without sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - _NOT_LIBRARY)
        paths += (Path(folder, name) for name in sorted(names) if name.endswith(".py"))
    digests = {path: digest for path, digest in _digests(paths, only_utf8=True).items() if digest}
    if not digests:
        raise UserError(
            f"data.text.source: this Python has no library sources in {str(root)!r}; use `source: files`"
        )
    return _local_text("python-stdlib", "text", dict.fromkeys(digests, "text"), digests)


def find_files(config: Files) -> dict[Path, str]:
    """Return the files that a study's patterns match, sorted by path, with the loader of each.

    Empty files are ignored.

    Raises:
        UserError: A pattern matches no file, or a file is an archive.
    """
    paths = sorted({path for pattern in config.paths for path in _matches(pattern)})
    return {path: _loader(path) for path in paths if path.stat().st_size}


def open_files(config: Files) -> LocalText:
    """Return the text of the files that a study's patterns match.

    Raises:
        UserError: A pattern matches no file, or a file is an archive or cannot be read.
    """
    loaders = find_files(config)
    return _local_text("files", config.column, loaders, _digests(list(loaders)))


def _local_text(
    source: str, column: str, loaders: Mapping[Path, str], digests: Mapping[Path, str]
) -> LocalText:
    # A sorted set, so that names, folders and copies of a file do not change the hash.
    lines = sorted({f"{loader} {digests[path]}\n" for path, loader in loaders.items()})
    return LocalText(source, loaders, column, hashlib.sha256("".join(lines).encode()).hexdigest())


def _matches(pattern: str) -> list[Path]:
    """Return the files that a glob pattern matches, in no fixed order.

    If it matches only folders, return the files in them and their subfolders, without hidden ones.

    An existing file or folder of exactly that name is taken literally, not as a pattern.

    Raises:
        UserError: There is no file.
    """
    expanded = os.path.expanduser(pattern)
    found = [expanded] if os.path.exists(expanded) else glob.glob(expanded, recursive=True)
    files = [Path(path).absolute() for path in found if os.path.isfile(path)]
    if not files:
        files = [file for path in found for file in _within(Path(path).absolute())]
    if not files:
        reason = "holds no file" if found else "matches no file"
        raise UserError(f"data.text.paths: {pattern!r} {reason}")
    return files


def _within(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders, without hidden ones."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _within(path)
        elif path.is_file():
            yield path


def _loader(path: Path) -> str:
    """Return the name of the ``datasets`` loader that reads a file, from the file's suffix.

    Raises:
        UserError: The file is an archive, or is compressed in a way that no loader reads.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    kind = suffixes[-2:-1] if zipped else suffixes[-1:]
    loader = _TABLES.get(kind[0], "text") if kind else "text"
    if kind and (kind[0] in _ARCHIVES or (zipped and loader == "parquet")):
        raise UserError(f"data.text.paths: {str(path)!r} is packed; unpack it, or use .gz for text and JSON")
    return loader


def _digests(paths: Sequence[Path], *, only_utf8: bool = False) -> dict[Path, str]:
    """Return the hash of each file's content.

    With ``only_utf8``, it is "" for a file that is not UTF-8.

    Reading and hashing release the GIL, so threads share the work.
    """
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(paths, pool.map(_utf8_digest if only_utf8 else _digest, paths), strict=True))


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"data.text.paths: cannot read {str(path)!r}: {error.strerror}") from None


def _utf8_digest(path: Path) -> str:
    content = path.read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return hashlib.sha256(content).hexdigest()


def _whole_files(paths: Sequence[Path], scratch: Path) -> Iterator[bytes]:
    """Yield the text of each file, in the order given."""

    def failed(read: int, error: Exception) -> str:
        return _failed(paths[min(read, len(paths) - 1)], error)

    load = partial(_load, "text", paths, scratch, sample_by="document")
    return texts(load, "text", what="text", failed=failed, batch=1)


def _rows(path: Path, loader: str, column: str, scratch: Path) -> Iterator[bytes]:
    """Yield the text of each row of a table file."""
    options = {"batch_size": 1000} if loader == "parquet" else {}
    load = partial(_load, loader, [path], scratch, **options)
    return texts(load, column, what=repr(str(path)), failed=lambda _, error: _failed(path, error))


def _load(loader: str, paths: Sequence[Path], scratch: Path, **options: Any) -> Any:
    # Streaming reads the files in place; without it the library would copy them to its cache.
    return quiet_datasets().load_dataset(
        loader,
        data_files=[glob.escape(str(path)) for path in paths],
        split="train",
        streaming=True,
        cache_dir=str(scratch),
        **options,
    )


def _failed(path: Path, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"data.text.paths: {str(path)!r} is not UTF-8 text (byte {error.start})"
    return f"data.text.paths: cannot read {str(path)!r}: {one_line(error)}"
