"""Where text comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from nasgrow.config import Files, Hub, Source
from nasgrow.data.hub import open_hub
from nasgrow.data.local import find_files, open_files, open_stdlib


class Document(Protocol):
    """Text that is known by its content and has not been read yet."""

    @property
    def description(self) -> Mapping[str, object]:
        """What the text is, as JSON: equal for equal text."""

    def documents(self, scratch: Path) -> Iterator[bytes]:
        """The documents as UTF-8; what must be kept while reading goes into the folder ``scratch``."""


def check_text(config: Source) -> None:
    """Look whether local files are there, without reading them or asking the hub.

    Raises:
        UserError: A pattern matches no file.
    """
    if isinstance(config, Files):
        find_files(config)


def open_text(config: Source) -> Document:
    """Find out what the text is, without reading more of it than that takes.

    Raises:
        UserError: There is no such text; :class:`~nasgrow.data.hub.HubUnreachableError` among them.
    """
    if isinstance(config, Hub):
        return open_hub(config)
    if isinstance(config, Files):
        return open_files(config)
    return open_stdlib()
