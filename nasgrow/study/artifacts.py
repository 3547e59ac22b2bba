"""Files that the dashboard shows with a trial that has ended: its loss curve and its schedule."""

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
"""Called with a run's folder and a path: draws the run's loss curve into that file."""


def artifact_store(folder: Path) -> FileSystemArtifactStore:
    """Return Optuna's artifact store in a study's folder; create it if there is none."""
    (folder / ARTIFACTS).mkdir(parents=True, exist_ok=True)
    return FileSystemArtifactStore(folder / ARTIFACTS)


def attacher(folder: Path, draw: Draw) -> Attach:
    """Return a function that attaches the loss curve and the schedule file to a trial that has ended.

    It attaches nothing if the user has removed the run, and skips files that Optuna lists already.

    Args:
        folder: The study's folder.
        draw: Draws the curve.
    """

    def attach(trial: Trial, record: TrialRecord, run_folder: Path) -> None:
        if not (run_folder / METRICS).exists():
            return  # the user has removed the run
        store = artifact_store(folder)
        with tempfile.TemporaryDirectory() as scratch:
            curve, schedule = Path(scratch) / "curve.png", Path(scratch) / "schedule.yaml"
            draw(run_folder, curve)
            schedule.write_text(yaml.safe_dump(record.schedule, sort_keys=False), encoding="utf-8")
            attached = _attached(trial)  # a driver may have attached some before it died
            for path in (curve, schedule):
                if path.name not in attached:
                    upload_artifact(artifact_store=store, file_path=str(path), study_or_trial=trial)

    return attach


def sweep_artifacts(folder: Path, studies: Iterable[OptunaStudy], storage: RDBStorage) -> None:
    """Remove artifacts of no study and no trial, left by a deleted Optuna study or a lost database.

    If Optuna cannot list the files of a trial, all files stay.

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
    except TypeError:  # as in _attached: keep all files
        return
    for path in (folder / ARTIFACTS).glob("*"):
        if path.name not in kept:
            path.unlink(missing_ok=True)


def _attached(trial: Trial) -> dict[str, str]:
    """Return the artifact ids of a trial's files by name; none if Optuna cannot list them."""
    try:
        return {meta.filename: meta.artifact_id for meta in get_all_artifact_meta(trial)}
    except TypeError:  # Optuna cannot list files after some were removed in the dashboard
        return {}
