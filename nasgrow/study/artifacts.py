"""What the dashboard shows beside a trial that has ended: its curve and its schedule."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml
from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta, upload_artifact
from optuna.storages import RDBStorage
from optuna.study import Study as OptunaStudy
from optuna.trial import FrozenTrial, Trial

from nasgrow.study.store import Attach
from nasgrow.study.trials import TrialRecord
from nasgrow.training.records import METRICS

ARTIFACTS = "artifacts"

Draw = Callable[[Path, Path], None]
"""Draws the curve of a run's folder into a file."""


def artifact_store(folder: Path) -> FileSystemArtifactStore:
    """The files of a study's trials."""
    (folder / ARTIFACTS).mkdir(parents=True, exist_ok=True)
    return FileSystemArtifactStore(folder / ARTIFACTS)


def attacher(folder: Path, draw: Draw) -> Attach:
    """Attaches curve and schedule file to a trial of the study in ``folder``; records stay in its runs."""

    def attach(trial: Trial, record: TrialRecord, run_folder: Path) -> None:
        if not (run_folder / METRICS).exists():
            return  # the user has removed the run
        store = artifact_store(folder)
        with tempfile.TemporaryDirectory() as scratch:
            curve, schedule = Path(scratch) / "curve.png", Path(scratch) / "schedule.yaml"
            draw(run_folder, curve)
            schedule.write_text(yaml.safe_dump(record.schedule, sort_keys=False), encoding="utf-8")
            attached = _attached(trial)  # by a driver that died, or lost its connection, just after
            for path in (curve, schedule):
                if path.name not in attached:
                    upload_artifact(artifact_store=store, file_path=str(path), study_or_trial=trial)

    return attach


def sweep_artifacts(folder: Path, studies: Iterable[OptunaStudy], storage: RDBStorage) -> None:
    """Remove the files that no trial has any longer: its Optuna study was deleted, or the database lost.

    Args:
        folder: The study's folder.
        studies: All of its Optuna studies.
        storage: Their database.
    """
    kept: set[str] = set()
    try:
        for study in studies:
            owners: list[OptunaStudy | FrozenTrial] = [study, *study.get_trials(deepcopy=False)]
            for owner in owners:
                kept |= {meta.artifact_id for meta in get_all_artifact_meta(owner, storage=storage)}
    except TypeError:  # as below: then all of them stay
        return
    for path in (folder / ARTIFACTS).glob("*"):
        if path.name not in kept:
            path.unlink(missing_ok=True)


def _attached(trial: Trial) -> dict[str, str]:
    """The files of a trial by name."""
    try:
        return {meta.filename: meta.artifact_id for meta in get_all_artifact_meta(trial)}
    except TypeError:  # Optuna cannot list what was removed in the dashboard
        return {}
