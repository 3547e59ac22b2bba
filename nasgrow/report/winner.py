"""The best schedule as a run file with its training settings, ready for ``nasgrow train``."""

from __future__ import annotations

import yaml

from nasgrow.errors import UserError
from nasgrow.report.load import Records
from nasgrow.report.verdict import Verdict
from nasgrow.study.trials import RUNS
from nasgrow.training.records import read_run


def winner(records: Records, verdict: Verdict) -> str | None:
    """Return the text of a run file that trains the best schedule again, with its first seed.

    None if there is no such schedule, or if its first run cannot be read.
    """
    if verdict.ours is None:
        return None
    try:
        run = read_run(records.folder / RUNS / next(iter(verdict.ours.trial.record.runs)))
    except UserError:
        return None
    title = " ".join(verdict.ours.title.split())
    head = (
        f"# The best schedule of the study {records.study.config.name}: {title}.\n"
        f"# {verdict.headline}\n"
        "# Train it with: nasgrow train best-schedule.yaml\n"
    )
    return head + yaml.safe_dump(run.document(), sort_keys=False, allow_unicode=True)
