"""Render a page as Markdown, with its figures as files beside it."""

from __future__ import annotations

import re

from nasgrow.report.page import Block, Bullets, Page, PageTable, Paragraph, Picture, Samples, Tiles
from nasgrow.study.markdown import escape

FIGURES = "figures"
"""The folder of figures beside the file."""


def to_markdown(page: Page) -> str:
    """Return the Markdown of a page."""
    parts = [f"# {escape(page.title)}", escape(page.facts), f"**{escape(page.headline)}**"]
    for section in page.sections:
        parts += [f"## {escape(section.title)}", *(_block(block) for block in section.blocks)]
    return "\n\n".join([*parts, "---", escape(page.made)]) + "\n"


def _block(block: Block) -> str:
    match block:
        case Paragraph(text, quiet):
            return f"_{escape(text)}_" if quiet else escape(text)
        case Bullets(items):
            return "\n".join(f"- {escape(item)}" for item in items)
        case Tiles(tiles):
            return "\n".join(
                f"- **{escape(tile.value)}** {escape(tile.label)}: {escape(tile.detail)}" for tile in tiles
            )
        case PageTable(columns, rows, text):
            rule = ["---" if column in text else "---:" for column in columns]
            lines = [[escape(column) for column in columns], rule]
            lines += [[escape(cell) for cell in row] for row in rows]
            return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        case Samples(prompt, texts):
            return "\n\n".join(f"{escape(name)}:\n\n{_fenced(prompt + text)}" for name, text in texts)
        case Picture(name, caption):
            return f"![{escape(caption)}]({FIGURES}/{name}.png)\n\n{escape(caption)}"


def _fenced(text: str) -> str:
    """Return a text as a code block, with a fence longer than any run of backticks in the text."""
    fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", text))]))
    return f"{fence}text\n{text}\n{fence}"
