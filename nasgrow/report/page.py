"""A page, described once: HTML and Markdown are both made from this, so that they say the same.

All text is plain. Whoever renders it escapes it: names from study files may hold anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Tone = Literal["won", "lost", "open"]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; a quiet one says what is missing, or how something is to be read."""

    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Tile:
    """A number to be seen first, what it is, and what else belongs to it."""

    value: str
    label: str
    detail: str


@dataclass(frozen=True)
class Tiles:
    """Numbers beside each other."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class PageTable:
    """A table; the columns named in ``text`` hold words, the others numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A figure by the name of its file, and what one sees in it."""

    name: str
    caption: str


@dataclass(frozen=True)
class Samples:
    """What several models write, side by side: the prompt, and the text of each by name."""

    prompt: str
    texts: Sequence[tuple[str, str]]


Block = Paragraph | Bullets | Tiles | PageTable | Picture | Samples


@dataclass
class Section:
    """A part of the page."""

    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """The whole report.

    Attributes:
        title: The name of what is reported on.
        facts: What was studied, in a line.
        headline: The verdict in a line.
        tone: What that is.
        sections: The parts, the verdict first.
        made: When and with what the report was made.
        kind: What is reported on.
    """

    title: str
    facts: str
    headline: str
    tone: Tone
    sections: Sequence[Section]
    made: str
    kind: str = "Growth study"
