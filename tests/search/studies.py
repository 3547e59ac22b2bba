"""Small studies on small data, for tests of search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from nasgrow.data import prepare
from nasgrow.search.config import StudyConfig
from nasgrow.search.ledger import Ledger
from nasgrow.search.life import begin
from nasgrow.search.study import Study, open_study
from nasgrow.strict import parse
from tests.training.runs import TRAINING, text_files

FINAL = {"hidden": 16, "layers": 2, "mlp": 32, "heads": 2, "key": 4, "value": 4}
SPACE: dict[str, Any] = {
    "kind": "compound",
    "start": [1, 0.5],
    "events": 2,
    "times": {"low": 0.1, "high": 0.7, "step": 0.1},
    "known": {"no growth": {"start": 1}, "half": {"start": 0.5, "at.1": 0.3, "at.2": 0.3}},
}


def study_data(folder: Path, **changes: Any) -> dict[str, Any]:
    """What a study file says; its runs take a fraction of a second, and none is given up unless a test asks.

    Tests of one process share the text.
    """
    text = folder.parent / "search-text"
    pattern = str(text / "*.txt") if text.exists() else text_files(text)
    return {
        "final": FINAL,
        "budget": {"flops": 8e7},
        "data": {"text": {"source": "files", "paths": [pattern]}, "validation": 0.1, "test": 0.1},
        "training": {**TRAINING, "evaluations": 20},
        "space": SPACE,
        "sampler": {"kind": "tpe"},
        "pruner": {"kind": "none"},
        "trials": 4,
        "baselines": {"shares": []},
        **changes,
    }


def write_study(folder: Path, stem: str = "tiny", **changes: Any) -> Path:
    """A study file in ``folder``; give None to leave a field out."""
    data = {key: value for key, value in study_data(folder, **changes).items() if value is not None}
    path = folder / f"{stem}.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def endless_study(name: str, **changes: Any) -> Study:
    """A study with 20 parameters and no end, for benchmarks of what a search costs besides training."""
    data = {
        "name": name,
        "final": {"hidden": 64, "layers": 4, "mlp": 256, "heads": 4, "key": 16, "value": 16},
        "budget": {"flops": 1e12},
        "space": str(Path(__file__).parents[2] / "search_spaces" / "per-dimension.yaml"),
        "objectives": ["loss"],
        "pruner": {"kind": "none"},
        "trials": 1_000_000,
    }
    return Study.resolve(parse(StudyConfig, {**data, **changes}, name), name)


def begin_study(path: Path, trials: int | None = None) -> tuple[Study, Path, Ledger]:
    """Begin the study of a file, without workers; the working folder and the cache are the caller's."""
    study, folder = open_study(path, trials=trials)
    return study, folder, begin(study, folder, prepare(study.config.data).fingerprint)
