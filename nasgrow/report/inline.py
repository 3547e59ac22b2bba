"""Figures inside a page: their SVG, in colours that the page may change for a dark ground."""

from __future__ import annotations

import re
from html import escape

from nasgrow.report.figures.style import DARK

_COLOR = re.compile(r"(fill|stroke): (#[0-9a-f]{6})")


def inline(svg: bytes, name: str, caption: str) -> str:
    """The SVG of a figure as part of a page.

    Args:
        svg: The file as matplotlib wrote it.
        name: The figure's: what its SVG refers to by name must differ from that of other figures.
        caption: What one sees.
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
    """The colours of figures on a dark ground, as CSS declarations."""
    return " ".join(f"{_named(light)}: {dark};" for light, dark in DARK.items())


def _variable(found: re.Match[str]) -> str:
    color = found[2]
    return f"{found[1]}: var({_named(color)}, {color})" if color in DARK else found[0]


def _named(color: str) -> str:
    return f"--c{color[1:]}"
