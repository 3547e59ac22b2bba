"""Render a page as one HTML file that holds its style, figures and script, and needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from nasgrow.report.inline import dark_colors, inline
from nasgrow.report.page import Block, Bullets, Page, PageTable, Paragraph, Picture, Samples, Section, Tiles

STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
MAX_PHONE_COLUMNS = 3
"""The most columns that a phone shows without scrolling; a wider table scrolls inside its box."""


def to_html(page: Page, figures: Mapping[str, bytes]) -> str:
    """Return the HTML of a page; ``figures`` holds the SVG of each picture by its name."""
    body = "\n".join(_section(section, figures) for section in page.sections)
    contents = "".join(
        f'<li><a href="#{_anchor(section)}">{escape(section.title)}</a></li>' for section in page.sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(page.title)}: report</title>
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<style>
{STYLE.read_text(encoding="utf-8")}@media screen and (prefers-color-scheme: dark) {{
  figure svg {{ {dark_colors()} }}
}}
</style>
</head>
<body>
<header>
<p class="kind">{escape(page.kind)}</p>
<h1>{escape(page.title)}</h1>
<p class="facts">{escape(page.facts)}</p>
</header>
<main>
<p class="headline {page.tone}">{escape(page.headline)}</p>
<nav><ul>{contents}</ul></nav>
{body}
</main>
<footer>{escape(page.made)}</footer>
<script>
{SCRIPT.read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def _anchor(section: Section) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in section.title.lower())


def _section(section: Section, figures: Mapping[str, bytes]) -> str:
    blocks = "\n".join(_block(block, figures) for block in section.blocks)
    return f'<section id="{_anchor(section)}">\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>'


def _block(block: Block, figures: Mapping[str, bytes]) -> str:
    match block:
        case Paragraph(text, quiet):
            kind = ' class="quiet"' if quiet else ""
            return f"<p{kind}>{escape(text)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"
        case Tiles(tiles):
            inside = "".join(
                f'<div class="tile"><span class="value">{escape(tile.value)}</span>'
                f'<span class="label">{escape(tile.label)}</span>'
                f'<span class="detail">{escape(tile.detail)}</span></div>'
                for tile in tiles
            )
            return f'<div class="tiles">{inside}</div>'
        case PageTable():
            return _table(block)
        case Samples(prompt, texts):
            inside = "".join(
                f'<div class="sample"><h3>{escape(name)}</h3>'
                f"<pre><b>{escape(prompt)}</b>{escape(text)}</pre></div>"
                for name, text in texts
            )
            return f'<div class="samples">{inside}</div>'
        case Picture(name, caption):
            drawn = inline(figures[name], name, caption)
            return (
                f'<figure><div class="box">{drawn}</div><figcaption>{escape(caption)}</figcaption></figure>'
            )


def _table(table: PageTable) -> str:
    wide = ' class="wide"' if len(table.columns) > MAX_PHONE_COLUMNS else ""
    kinds = ["words" if column in table.text else "number" for column in table.columns]
    head = "".join(
        f'<th scope="col" class="{kind}">{escape(column)}</th>'
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    rows = "\n".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{escape(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    inside = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>"
    return f'<div class="box"><table{wide}>{inside}</table></div>'
