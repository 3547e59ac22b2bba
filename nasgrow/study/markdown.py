"""Texts in Markdown."""

from __future__ import annotations

import re


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", line)
