"""Small studies on small data, for tests of studies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from nasgrow.data import prepare
from nasgrow.driver import Driver
from nasgrow.experiments.search import Observer, Workplace, confirm, search
from nasgrow.study.artifacts import Draw
from nasgrow.study.study import ResolvedStudy, open_study
from nasgrow.study.study_folder import KnownStudy, opened, read_study
from tests.executors.inline import InlineExecutor
from tests.training.runs import TRAINING, text_files

FINAL = {"hidden": 16, "layers": 2, "mlp": 32, "heads": 2, "key": 4, "value": 4}
SPACE: dict[str, Any] = {
    "kind": "compound",
    "start": [1, 0.5],
    "events": 2,
    "times": {"low": 0.1, "high": 0.7, "step": 0.1},
    "known": {"no growth": {"start": 1}, "half": {"start": 0.5, "at.1": 0.3, "at.2": 0.3}},
}
TUNE = {"learning_rate.peak": ["x1"]}
"""Nothing is tuned: one learning rate for all."""


def study_data(folder: Path, **changes: Any) -> dict[str, Any]:
    """What a study file says; its runs take a fraction of a second, and none is paused unless a test asks.

    Tests of one process share the text. Fixed shapes, other budgets and several learning rates are for tests
    that ask for them.
    """
    text = folder.parent / "study-text"
    pattern = str(text / "*.txt") if text.exists() else text_files(text)
    return {
        "final": FINAL,
        "budget": {"flops": 8e7},
        "data": {"text": {"source": "files", "paths": [pattern]}, "validation": 0.1, "test": 0.1},
        "training": {**TRAINING, "evaluations": 10},
        "space": SPACE,
        "sampler": {"kind": "tpe"},
        "pruner": {"kind": "none"},
        "resources": {"cpus": 1},
        "trials": 4,
        "tune": TUNE,
        **changes,
        "baselines": {"compute": 0, "budgets": [], **(changes.get("baselines") or {})},
    }


def write_study(folder: Path, stem: str = "tiny", **changes: Any) -> Path:
    """A study file in ``folder``; give None to leave a field out."""
    data = {key: value for key, value in study_data(folder, **changes).items() if value is not None}
    path = folder / f"{stem}.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


@dataclass
class Quiet:
    """Observes a study without showing anything.

    Attributes:
        warnings: What it was warned of.
        stop_when: Whether to stop, asked in every round.
        watch: Called after every round.
        draw: Draws the curve of a run.
    """

    warnings: list[str] = field(default_factory=list)
    stop_when: Callable[[], bool] = lambda: False
    watch: Callable[[Driver], None] = lambda driver: None
    draw: Draw = lambda folder, path: path.touch()

    def observer(self) -> Observer:
        return Observer(
            note=lambda line: None,
            begun=lambda folder, workers: None,
            watch=self.watch,
            warn=self.warnings.append,
            stop=self.stop_when,
            draw=self.draw,
        )


def begin_study(
    path: Path, trials: int | None = None, quiet: Quiet | None = None
) -> tuple[ResolvedStudy, Path]:
    """Create the folder and the storage of a study, or open them again; nothing is trained."""
    study, folder = open_study(path, trials=trials)
    fingerprint = prepare(study.config.data).fingerprint
    warn = (quiet or Quiet()).warnings.append
    with opened(study, folder, fingerprint, lambda trial, record, path: None, warn):
        pass
    return study, folder


def run_study(
    path: Path, trials: int | None = None, workers: int = 1, quiet: Quiet | None = None
) -> tuple[ResolvedStudy, Path, KnownStudy]:
    """Search the study of a file in threads of this process; its records.

    The working folder and the data cache are the caller's (see ``tests/study/conftest.py``).
    """
    study, folder = open_study(path, trials=trials)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nasgrow.experiments.search.LocalExecutor", InlineExecutor)
        search(study, folder, Workplace(workers=workers), (quiet or Quiet()).observer())
    return study, folder, read_study(folder)


def confirm_study(path: Path, *, top: int = 1, each: str | None = None, seeds: int = 2) -> KnownStudy:
    """Confirm the study of a file in threads of this process; its records."""
    study, folder = open_study(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nasgrow.experiments.search.LocalExecutor", InlineExecutor)
        confirm(study, folder, Workplace(workers=1), Quiet().observer(), top=top, each=each, seeds=seeds)
    return read_study(folder)
