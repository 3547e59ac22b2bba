"""Text in local files, the sources of the Python standard library among them."""

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
    """Text in local files: known by their content, wherever they are and whatever they are called."""

    source: str
    files: Mapping[Path, str]
    """The loader that reads each file."""
    column: str
    content: str
    """The hash of all that the files hold."""

    @property
    def description(self) -> Mapping[str, object]:
        """What the text is."""
        return {"source": self.source, "column": self.column, "content": self.content}

    def documents(self, scratch: Path) -> Iterator[bytes]:
        """Each text file, and each row of the others."""
        plain = [path for path, loader in self.files.items() if loader == "text"]
        for start in range(0, len(plain), _FILES_AT_ONCE):
            yield from _whole_files(plain[start : start + _FILES_AT_ONCE], scratch)
        for path, loader in self.files.items():
            # One file at a time: read together, the columns of all files would have to agree.
            if loader != "text":
                yield from _rows(path, loader, self.column, scratch)


def open_stdlib() -> LocalText:
    """The sources of the running interpreter's library: not its tests, nor what is installed, nor not UTF-8.

    The tests are left out because many systems do not install them, and ``encodings`` because its tables
    repeat each other: what is tested would have been trained on.

    Raises:
        UserError: The interpreter came without sources.
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
    """The files that the patterns of a study match, and the loader of each; empty ones are ignored.

    Raises:
        UserError: A pattern matches no file, or a file is packed.
    """
    paths = sorted({path for pattern in config.paths for path in _matches(pattern)})
    return {path: _loader(path) for path in paths if path.stat().st_size}


def open_files(config: Files) -> LocalText:
    """The text of the files that the patterns of a study match.

    Raises:
        UserError: A pattern matches no file, or a file cannot be read.
    """
    loaders = find_files(config)
    return _local_text("files", config.column, loaders, _digests(list(loaders)))


def _local_text(
    source: str, column: str, loaders: Mapping[Path, str], digests: Mapping[Path, str]
) -> LocalText:
    # A set, in order: neither names nor places nor copies of a file change the text.
    lines = sorted({f"{loader} {digests[path]}\n" for path, loader in loaders.items()})
    return LocalText(source, loaders, column, hashlib.sha256("".join(lines).encode()).hexdigest())


def _matches(pattern: str) -> list[Path]:
    """The files that a glob pattern matches, and those in the folders that it matches, hidden ones left out.

    A file or a folder that exists by that very name is itself.
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
    """The files of a folder and those below it, without hidden ones."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _within(path)
        elif path.is_file():
            yield path


def _loader(path: Path) -> str:
    """Which loader of ``datasets`` reads a file."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    kind = suffixes[-2:-1] if zipped else suffixes[-1:]
    loader = _TABLES.get(kind[0], "text") if kind else "text"
    if kind and (kind[0] in _ARCHIVES or (zipped and loader == "parquet")):
        raise UserError(f"data.text.paths: {str(path)!r} is packed; unpack it, or use .gz for text and JSON")
    return loader


def _digests(paths: Sequence[Path], *, only_utf8: bool = False) -> dict[Path, str]:
    """The hash of each file's content, or nothing for one that should be UTF-8 and is not.

    Reading and hashing let other threads run, so a few share the work.
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
    """The text of each file: one row a file, in the order given."""

    def failed(read: int, error: Exception) -> str:
        return _failed(paths[min(read, len(paths) - 1)], error)

    load = partial(_load, "text", paths, scratch, sample_by="document")
    return texts(load, "text", what="text", failed=failed, batch=1)


def _rows(path: Path, loader: str, column: str, scratch: Path) -> Iterator[bytes]:
    """The text of each row of a table."""
    options = {"batch_size": 1000} if loader == "parquet" else {}
    load = partial(_load, loader, [path], scratch, **options)
    return texts(load, column, what=repr(str(path)), failed=lambda _, error: _failed(path, error))


def _load(loader: str, paths: Sequence[Path], scratch: Path, **options: Any) -> Any:
    # Streaming reads the files where they are; otherwise the library would keep a copy of them.
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
