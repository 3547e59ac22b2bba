"""Read and judge a study: the input of report pages and summaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nasgrow.report.integrity import Integrity, examine
from nasgrow.report.load import Records, load
from nasgrow.report.ranking import Ranking, rank
from nasgrow.report.verdict import Verdict, judge
from nasgrow.report.winner import winner
from nasgrow.study.study import ResolvedStudy


@dataclass(frozen=True)
class Findings:
    """A study's records, its ranking of schedules and shapes, the verdict, and its weaknesses."""

    records: Records
    ranking: Ranking
    verdict: Verdict
    integrity: Integrity
    winner: str | None
    """The text of a run file for the best schedule; None without a schedule or a readable run."""


def find(
    study: ResolvedStudy, folder: Path, watch: Callable[[int, int], None] = lambda done, total: None
) -> Findings:
    """Read the records of the study in ``folder`` and judge them.

    Args:
        study: The study.
        folder: Its folder.
        watch: Called with the number of runs read so far and the number of all runs.
    """
    records = load(study, folder, watch)
    ranking = rank(records)
    verdict = judge(records, ranking)
    return Findings(records, ranking, verdict, examine(records, ranking, verdict), winner(records, verdict))
