"""Find the next command for a study, and the run of its best schedule."""

from __future__ import annotations

from pathlib import Path

from nasgrow.cli.files import is_study, load_run
from nasgrow.config import RunConfig
from nasgrow.study.baselines import times_of
from nasgrow.study.best import best_run, best_schedule
from nasgrow.study.config import STUDY
from nasgrow.study.study import open_study
from nasgrow.study.study_folder import KnownStudy, read_study, trials_by_kind
from nasgrow.study.trials import read_trials
from nasgrow.training.records import read_run


def next_step(path: Path, known: KnownStudy) -> str:
    """Return a line with the next command for a study: search, confirm or report."""
    confirming = [
        *known.trials["confirmation"].values(),
        *(one for one in known.trials["baseline"].values() if times_of(one.name or "") != 1),  # tuned first
    ]
    if confirming:
        whole = all(one.is_ended for one in confirming) and known.trials["confirmation"]
        command = f"nasgrow report {path}" if whole else f"nasgrow confirm {path}   # it was stopped"
    elif known.state != "ended" or best_schedule(known.trials) is None:
        command = f"nasgrow search {path}"
    else:
        command = f"nasgrow confirm {path}   # fresh seeds, on the test split"
    return f"Next: {command}"


def run_of(path: Path) -> tuple[Path, str | None]:
    """Return the folder of a run; for a study, the run of its best schedule, and a line about it."""
    if not path.is_file() and not (path / STUDY).is_file():
        return path, None
    _, folder = open_study(path)
    best, run = best_run(read_study(folder).trials, folder)
    return run, str(best)


def load_best(path: Path) -> tuple[RunConfig, str | None]:
    """Read the run of a file; for a study with results, the run of its best schedule, and a line about it."""
    if is_study(path):
        _, folder = open_study(path)
        best = best_schedule(trials_by_kind(read_trials(folder)))
        if best is not None:
            return read_run(best.run(folder)).config, str(best)
    return load_run(path), None
