"""``nasgrow table``: write the search trials of a study to one Parquet file."""

from __future__ import annotations

from pathlib import Path

from nasgrow.study.study import open_study
from nasgrow.study.table import check_table, tabulate, write_table


def run(path: Path, to: Path | None) -> int:
    """Write the table of a study's search trials to ``to``, by default ``NAME.parquet``; return 0.

    An existing file is overwritten only if it is a table.

    Raises:
        UserError: ``to`` is another file, no search trial has ended, or one was pruned or paused.
    """
    study, folder = open_study(path)
    to = to or Path(f"{study.config.name}.parquet")
    if to.exists():
        check_table(to)  # only a table may be overwritten
    found = tabulate(study, folder)
    write_table(found, to)
    print(f"{to}: {len(found.rows):,} runs of {found.points:,} points, {to.stat().st_size / 1e6:.2f} MB")
    return 0
