"""What the dashboard shows beside a trial: its curve as a figure, its schedule, its records."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml
from optuna.artifacts import FileSystemArtifactStore, upload_artifact
from optuna.trial import Trial

from nasgrow.schedule import schedule_to
from nasgrow.search.objective import Attach
from nasgrow.training.records import METRICS
from nasgrow.training.run import Run

ARTIFACTS = "artifacts"

Draw = Callable[[Path, Path], None]
"""Draws the curve of a run's folder into a file."""


def artifact_store(folder: Path) -> FileSystemArtifactStore:
    """The files of a study's trials."""
    (folder / ARTIFACTS).mkdir(parents=True, exist_ok=True)
    return FileSystemArtifactStore(folder / ARTIFACTS)


def attacher(folder: Path, draw: Draw) -> Attach:
    """Attaches curve, schedule file and records to a trial of the study in ``folder``."""
    store = artifact_store(folder)

    def attach(trial: Trial, run: Run, run_folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            curve, schedule = Path(scratch) / "curve.png", Path(scratch) / "schedule.yaml"
            draw(run_folder, curve)
            schedule.write_text(yaml.safe_dump(schedule_to(run.schedule), sort_keys=False), encoding="utf-8")
            for path in (curve, schedule, run_folder / METRICS):
                upload_artifact(artifact_store=store, file_path=str(path), study_or_trial=trial)

    return attach
