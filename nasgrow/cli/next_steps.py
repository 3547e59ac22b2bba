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
        resumed = f"nasgrow confirm {path}   # was stopped; give the same options"
        command = f"nasgrow report {path}" if whole else resumed
    elif known.state != "ended" or best_schedule(known.trials) is None:
        command = f"nasgrow search {path}"
    else:
        command = f"nasgrow confirm {path}   # fresh seeds, on the test split"
    return f"Next: {command}"


def run_of(path: Path) -> tuple[Path, str | None]:
    """Return the folder to take weights from, and a line about it.

    If ``path`` is the file or the folder of a study, these are the run of its best schedule, and a
    description of that schedule. Any other folder is returned as it is, with None for the line.

    Raises:
        UserError: No search trial of the study has finished, or the weights were not kept.
    """
    if not path.is_file() and not (path / STUDY).is_file():
        return path, None
    _, folder = open_study(path)
    best, run = best_run(read_study(folder).trials, folder)
    return run, str(best)


def load_best(path: Path) -> tuple[RunConfig, str | None]:
    """Return the run that a file describes, and a line about it if it is from a study's results.

    For a study with results, it is the first run of the best schedule, and the line describes that
    schedule. For a study without results, it is the final shape from scratch. The line is then
    None, as for run and schedule files.
    """
    if is_study(path):
        _, folder = open_study(path)
        best = best_schedule(trials_by_kind(read_trials(folder)))
        if best is not None:
            return read_run(best.run(folder)).config, str(best)
    return load_run(path), None
