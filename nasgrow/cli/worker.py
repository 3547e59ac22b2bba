"""``nasgrow worker``: one process that trains the trials of a study."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nasgrow.cli.signals import asked_to_stop
from nasgrow.engines.local import STOPPED
from nasgrow.engines.worker import work
from nasgrow.report.curve import draw_curve
from nasgrow.search.artifacts import attacher
from nasgrow.search.database import PATIENCE
from nasgrow.search.ledger import KINDS
from nasgrow.search.life import reopen
from nasgrow.search.study import open_study
from nasgrow.training.machine import pick_device


def run(path: Path, index: int, parent: int | None, confirm: bool) -> int:
    """Train trials until the study has ended, or the launcher has; return the exit code."""
    study, folder = open_study(path)
    ledger = reopen(study, folder, patience=PATIENCE)
    with asked_to_stop() as asked:
        whole = work(
            ledger,
            folder,
            index=index,
            device=pick_device(index),
            attach=attacher(folder, draw_curve),
            warn=lambda line: print(f"warning: {line}", file=sys.stderr, flush=True),
            kinds=("confirmation",) if confirm else KINDS,
            stop=lambda: asked() or (parent is not None and os.getppid() != parent),
        )
    return 0 if whole else STOPPED
