"""Small studies that are trained in the test's process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nasgrow.data import prepare
from nasgrow.driver import Driver
from nasgrow.executors.worker import Setup
from nasgrow.experiments.forecast import Forecast, forecast
from nasgrow.schedulers.make import make_schedulers
from nasgrow.strict import parse
from nasgrow.study.config import StudyConfig
from nasgrow.study.costs import LiveCosts, Trained, prefix_setup
from nasgrow.study.memory_store import MemoryStore
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import SEARCHED, Kind, TrialRecord
from nasgrow.training.machine import numerics
from tests.executors.in_process import InProcess
from tests.training.runs import CPU, TRAINING, text_files

SPACE: dict[str, Any] = {
    "kind": "compound",
    "start": [1, 0.5],
    "events": 2,
    "times": {"low": 0.1, "high": 0.7, "step": 0.1},
    "known": {
        "early": {"start": 0.5, "at.1": 0.3, "at.2": 0.3},
        "late": {"start": 0.5, "at.1": 0.5, "at.2": 0.5},
    },
}

GRID: dict[str, Any] = {
    "space": {
        "kind": "per-dimension",
        "dims": {"hidden": {"start": [1, 0.5]}, "layers": {"start": [1, 0.5]}},
        "times": {"low": 0.3, "high": 0.6, "step": 0.3},
    },
    "sampler": {"kind": "grid"},
    "trials": None,
    "budget": {"flops": 4e7},
}

ONE = {"learning_rate.peak": ["x1"]}
"""One learning rate for all."""


def small_study(folder: Path, name: str = "tiny", **changes: Any) -> ResolvedStudy:
    """A study whose runs take a fraction of a second; its states are cached, whatever that takes."""
    text = folder / "text"
    pattern = str(text / "*.txt") if text.exists() else text_files(text)
    data = {
        "name": name,
        "final": {"hidden": 16, "layers": 2, "mlp": 32, "heads": 2, "key": 4, "value": 4},
        "budget": {"flops": 8e7},
        "data": {"text": {"source": "files", "paths": [pattern]}, "validation": 0.1, "test": 0.1},
        "training": {**TRAINING, "evaluations": 20},
        "space": SPACE,
        "sampler": {"kind": "random"},
        "pruner": {"kind": "none"},
        "trials": 4,
        "prefix_cache": {"gigabytes": 1, "share": 1e9},
        "tune": ONE,
        "baselines": {"compute": 0},
        **changes,
    }
    return ResolvedStudy.resolve(parse(StudyConfig, data, name), name)


@dataclass
class Live:
    """A study that is trained in this process."""

    study: ResolvedStudy
    place: Path

    def __post_init__(self) -> None:
        self.folder = self.place / "runs" / self.study.config.name
        self.corpus = prepare(self.study.config.data)
        self.trials: dict[Kind, dict[int, TrialRecord]] = {kind: {} for kind in SEARCHED}
        self.cache = Trained(self.study, self.folder).cache
        self.costs = LiveCosts(self.study, self.folder, self.corpus, numerics(CPU))

    def train(self, most: int | None = None) -> None:
        """Train to the end, or so many trials."""
        schedulers = make_schedulers(self.study, self.trials, self.costs)
        setup = Setup(
            runs=str(self.folder / "runs"),
            data=self.study.config.data.model_dump(mode="json"),
            fingerprint=self.corpus.fingerprint,
            prefixes=prefix_setup(self.study, self.folder),
            gpus=0,
            threads=torch.get_num_threads(),
        )
        executor = InProcess(setup)
        before = sum(map(len, self.trials.values()))

        def enough() -> bool:
            return most is not None and sum(map(len, self.trials.values())) - before >= most

        Driver(self.study, schedulers, self.trials, executor, MemoryStore(self.trials), stop=enough).run()

    def foretell(self, **options: Any) -> Forecast:
        settings: dict[str, Any] = {"steps": None, "workers": 1, **options}
        return forecast(
            self.study,
            self.trials,
            Trained(self.study, self.folder),
            fingerprint=self.corpus.fingerprint,
            environment=numerics(CPU),
            **settings,
        )
