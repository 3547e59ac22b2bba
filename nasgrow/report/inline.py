"""Put the SVG of figures into an HTML page, with CSS variables as colours that dark mode can change."""

from __future__ import annotations

import re
from html import escape

from nasgrow.report.figures.style import DARK

_COLOR = re.compile(r"(fill|stroke): (#[0-9a-f]{6})")


def inline(svg: bytes, name: str, caption: str) -> str:
    """Return the SVG element of a figure, for use inside an HTML page.

    It has no width and height. Colours in :data:`DARK` become CSS variables; others stay.

    Args:
        svg: The file as matplotlib wrote it.
        name: The figure's name. It prefixes all ids, which must be unique among the figures of a page.
        caption: The description for screen readers.
    """
    text = svg.decode()
    text = text[text.find("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = _COLOR.sub(_variable, text)
    head, end, rest = text.partition(">")
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{escape(caption)}"{end}{rest}' if end else text


def dark_colors() -> str:
    """Return CSS declarations that give figures their colours of dark mode."""
    return " ".join(f"{_named(light)}: {dark};" for light, dark in DARK.items())


def _variable(found: re.Match[str]) -> str:
    color = found[2]
    return f"{found[1]}: var({_named(color)}, {color})" if color in DARK else found[0]


def _named(color: str) -> str:
    return f"--c{color[1:]}"
