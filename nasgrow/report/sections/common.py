"""What the sections of a report have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version

from matplotlib.figure import Figure

from nasgrow.report.page import Paragraph, Picture


@dataclass
class Gallery:
    """The figures that sections show, by the name of their files."""

    figures: dict[str, Figure] = field(default_factory=dict)

    def show(self, name: str, figure: Figure, caption: str) -> Picture:
        """Keep a figure, to be shown where the picture stands."""
        self.figures[name] = figure
        return Picture(name, caption)

    def show_or_say(
        self, name: str, figure: Figure | None, caption: str, otherwise: str
    ) -> Picture | Paragraph:
        """Show a figure, or say why there is none."""
        return aside(otherwise) if figure is None else self.show(name, figure, caption)


def aside(text: str) -> Paragraph:
    """A quiet line: what is not shown and why, or how to read what is."""
    return Paragraph(text, quiet=True)


def made() -> str:
    """When and with what a report was made."""
    return f"Made by nasgrow {version('nasgrow')} on {date.today():%d %B %Y} from records alone."
