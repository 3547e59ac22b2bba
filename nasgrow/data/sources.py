"""Open the text of a study: local files, the Python standard library, or a hub dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from nasgrow.config import Files, Hub, Source
from nasgrow.data.hub import open_hub
from nasgrow.data.local import find_files, open_files, open_stdlib


class Document(Protocol):
    """The text of a study, usually many documents: identified by its content, but not read yet."""

    @property
    def description(self) -> Mapping[str, object]:
        """The settings and the content hash or commit, as plain data; equal for equal text."""

    def documents(self, scratch: Path) -> Iterator[bytes]:
        """Yield the documents as UTF-8; temporary files go into the folder ``scratch``."""


def check_text(config: Source) -> None:
    """Check that local files exist, without reading them or asking the hub.

    Raises:
        UserError: A pattern matches no file, or a file is an archive.
    """
    if isinstance(config, Files):
        find_files(config)


def open_text(config: Source) -> Document:
    """Identify the text of a study: hash local files, or ask the hub for the commit.

    Raises:
        UserError: The text does not exist or cannot be read.
        HubUnreachableError: The hub does not answer.
    """
    if isinstance(config, Hub):
        return open_hub(config)
    if isinstance(config, Files):
        return open_files(config)
    return open_stdlib()
