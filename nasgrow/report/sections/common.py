"""Helpers that the sections of all reports share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version

from matplotlib.figure import Figure

from nasgrow.report.page import Bullets, Paragraph, Picture, Section


@dataclass
class Gallery:
    """The figures that a report's sections show, by the stem of their file names."""

    figures: dict[str, Figure] = field(default_factory=dict)

    def show(self, name: str, figure: Figure, caption: str) -> Picture:
        """Add a figure, and return the picture block that shows it."""
        self.figures[name] = figure
        return Picture(name, caption)

    def show_or_say(
        self, name: str, figure: Figure | None, caption: str, otherwise: str
    ) -> Picture | Paragraph:
        """Add and show a figure; if it is None, return a note with the text ``otherwise``."""
        return aside(otherwise) if figure is None else self.show(name, figure, caption)


def aside(text: str) -> Paragraph:
    """Return a quiet note: why something is not shown, or how to read a figure or table."""
    return Paragraph(text, quiet=True)


def weakening(listed: Sequence[str]) -> Section:
    """Return the section with the weaknesses of a result, a bullet each."""
    block = Bullets(listed) if listed else Paragraph("Nothing that the records show.")
    return Section("What weakens this", [block])


def made() -> str:
    """Return the footer of a report: nasgrow's version and the date."""
    return f"Made by nasgrow {version('nasgrow')} on {date.today():%d %B %Y} from records alone."
