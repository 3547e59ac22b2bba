"""``nasgrow compare``: compare several studies in one report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from nasgrow.cli.console import print_sentences, study_console
from nasgrow.cli.report import reading
from nasgrow.report.compare.write import write_comparison
from nasgrow.strict import plain_name, with_prefix
from nasgrow.study.study import recorded_study


def run(paths: Sequence[Path], name: str | None, to: Path | None, quiet: bool = False) -> int:
    """Write the comparison of some studies; return 0.

    Args:
        paths: The files or folders of the studies.
        name: The title; by default the names of the studies.
        to: The folder of the report; by default ``reports/NAME``.
        quiet: Whether to show no progress bar.
    """
    studies = [recorded_study(path) for path in paths]
    if name is not None:
        with_prefix("--name", partial(plain_name, name))
    name = name or "-vs-".join(study.config.name for study, _ in studies)
    to = to or Path("reports") / name
    with reading(quiet) as watch:
        comparison = write_comparison(studies, name, to, watch)
    print_sentences(study_console(), [comparison.headline])
    print(to / "index.html")
    return 0
