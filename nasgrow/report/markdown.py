"""A page as Markdown, with its figures beside it."""

from __future__ import annotations

import re

from nasgrow.report.page import Block, Bullets, Page, Picture, Table, Text, Tiles

FIGURES = "figures"
"""The folder of figures beside the file."""


def to_markdown(page: Page) -> str:
    """The page."""
    parts = [f"# {_plain(page.title)}", _plain(page.facts), f"**{_plain(page.headline)}**"]
    for section in page.sections:
        parts += [f"## {_plain(section.title)}", *(_block(block) for block in section.blocks)]
    return "\n\n".join([*parts, "---", _plain(page.made)]) + "\n"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", line)


def _block(block: Block) -> str:
    match block:
        case Text(text, quiet):
            return f"_{_plain(text)}_" if quiet else _plain(text)
        case Bullets(items):
            return "\n".join(f"- {_plain(item)}" for item in items)
        case Tiles(tiles):
            return "\n".join(
                f"- **{_plain(tile.value)}** {_plain(tile.label)}: {_plain(tile.detail)}" for tile in tiles
            )
        case Table(columns, rows, text):
            rule = ["---" if column in text else "---:" for column in columns]
            lines = [[_plain(column) for column in columns], rule]
            lines += [[_plain(cell) for cell in row] for row in rows]
            return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        case Picture(name, caption):
            return f"![{_plain(caption)}]({FIGURES}/{name}.png)\n\n{_plain(caption)}"
