"""The content of a report page, from which both HTML and Markdown are rendered.

All text is plain. The renderers escape it, since names from study files may hold any character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Tone = Literal["won", "lost", "open"]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; a quiet one is a note on missing data or on how to read a figure."""

    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Bullets:
    """A bulleted list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Tile:
    """A key number in large type, with its label and a detail such as its interval."""

    value: str
    label: str
    detail: str


@dataclass(frozen=True)
class Tiles:
    """A row of key numbers."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class PageTable:
    """A table; the columns named in ``text`` hold text, the others numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A figure, by the stem of its file name, and its caption."""

    name: str
    caption: str


@dataclass(frozen=True)
class Samples:
    """Generated texts of several models side by side: the prompt, then the name and text of each model."""

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
        title: The name of the study, comparison, family or map.
        facts: Its shapes, budget and trials in a line.
        headline: The verdict in a line.
        tone: Whether growth won, lost or neither; it colours the headline.
        sections: The sections, the verdict first.
        made: The date and nasgrow's version.
        kind: The kind of report, shown above the title.
    """

    title: str
    facts: str
    headline: str
    tone: Tone
    sections: Sequence[Section]
    made: str
    kind: str = "Growth study"
