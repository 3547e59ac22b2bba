"""What a report of a study says, for tests to read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from nasgrow.report.findings import find
from nasgrow.report.html import to_html
from nasgrow.report.markdown import to_markdown
from nasgrow.report.sections import compose
from nasgrow.report.summary import summarise
from nasgrow.report.write import write_report
from nasgrow.training.atomic_files import to_json
from tests.report.studies import Recorded


def said(recorded: Recorded) -> tuple[str, str, dict[str, Any]]:
    """What a report says: its page, its Markdown and its summary, without drawing the figures."""
    found = find(recorded.study, recorded.folder)
    page, gallery = compose(found)
    html = to_html(page, dict.fromkeys(gallery.figures, b""))
    return html, to_markdown(page), json.loads(to_json(summarise(found)))


def written(recorded: Recorded, to: Path) -> tuple[str, str, dict[str, Any]]:
    """The same of a report that is written whole."""
    write_report(recorded.study, recorded.folder, to)
    page, markdown = (to / "index.html").read_text(), (to / "report.md").read_text()
    return page, markdown, json.loads((to / "summary.json").read_text())


def section(page: str, title: str) -> str:
    """The section of a page that has this title."""
    found = re.search(rf"<section[^>]*>\s*<h2>{title}</h2>(.*?)</section>", page, re.DOTALL)
    assert found, title
    return found[1]
