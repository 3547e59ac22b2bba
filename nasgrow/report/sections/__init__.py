"""What a report says and shows, section by section; what the data cannot show is left out, and why."""

from collections.abc import Callable

from nasgrow.report.page import Section
from nasgrow.report.sections import answer, contenders, evidence, search
from nasgrow.report.sections.common import Findings, Gallery
from nasgrow.report.sections.evidence import facts

SECTIONS: tuple[Callable[[Findings, Gallery], Section], ...] = (
    answer.verdict,
    answer.weaknesses,
    answer.confirmations,
    contenders.compute,
    contenders.schedules,
    contenders.baselines,
    search.matters,
    search.search,
    search.events,
    evidence.integrity,
    evidence.files,
)

__all__ = ["Findings", "Gallery", "facts", "sections"]


def sections(found: Findings, gallery: Gallery) -> list[Section]:
    """All sections, the verdict first; their figures are hung in the gallery."""
    return [section(found, gallery) for section in SECTIONS]
