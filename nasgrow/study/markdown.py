"""Escape text for Markdown."""

from __future__ import annotations

import re


def escape(text: str) -> str:
    """Return text that Markdown shows literally, on one line."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", line)
