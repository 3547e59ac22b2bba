"""``nasgrow log``: the records of a run or a study in a tracker."""

from __future__ import annotations

from pathlib import Path

from nasgrow.study.config import STUDY
from nasgrow.study.study import open_study
from nasgrow.study.study_folder import read_study
from nasgrow.study.trials import RUNS
from nasgrow.trackers import log_runs, next_step


def run(path: Path, tracker: str, out: Path | None) -> int:
    """Write the records of a run, or of all runs of a study, for a tracker; return 0.

    Args:
        path: The folder of the run, or the file or the folder of the study.
        tracker: The name of the tracker.
        out: The new folder to write; by default ``TRACKER/NAME``.
    """
    if path.is_file() or (path / STUDY).is_file():
        _, folder = open_study(path)
        runs = {
            f"{trial.kind}-{trial.number:05d}-seed-{seed}": folder / RUNS / identity
            for kind in read_study(folder).trials.values()
            for trial in kind.values()
            for seed, identity in zip(trial.seeds, trial.runs, strict=False)
        }
    else:
        folder, runs = path, {path.resolve().name: path}
    out = out or Path(tracker) / folder.resolve().name  # "." has no name
    count = log_runs(tracker, runs, out)
    print(f"{out}: {len(runs)} run{'s' if len(runs) != 1 else ''}, {count:,} values")
    print(f"Next: {next_step(tracker, out)}")
    return 0
