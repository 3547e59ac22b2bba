"""Compose a study's report from its sections. Each section leaves out a figure without data, and says why."""

from collections.abc import Callable

from nasgrow.report.findings import Findings
from nasgrow.report.page import Page, Section
from nasgrow.report.sections import answer, contenders, evidence, search
from nasgrow.report.sections.common import Gallery, made

REPORT_SECTIONS: tuple[Callable[[Findings, Gallery], Section], ...] = (
    answer.verdict,
    answer.weaknesses,
    answer.confirmations,
    answer.samples,
    contenders.compute,
    contenders.schedules,
    contenders.baselines,
    search.matters,
    search.search,
    search.events,
    evidence.integrity,
    evidence.files,
)

__all__ = ["Gallery", "compose"]


def compose(found: Findings) -> tuple[Page, Gallery]:
    """Return the page of a study's report and its figures."""
    gallery = Gallery()
    page = Page(
        title=found.records.study.config.name,
        facts=evidence.facts(found.records),
        headline=found.verdict.headline,
        tone=found.verdict.outcome,
        sections=[section(found, gallery) for section in REPORT_SECTIONS],
        made=made(),
    )
    return page, gallery
