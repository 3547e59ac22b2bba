"""Small runs on small data, for tests of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nasgrow.config import RunConfig
from nasgrow.data import Corpus, prepare
from nasgrow.training.run import Run

SCHEDULE: dict[str, Any] = {
    "start": {"hidden": 8, "layers": 1, "mlp": 16, "heads": 2, "key": 4, "value": 4},
    "events": [
        {"at": 0.3, "grow": [{"expand": "hidden", "to": 12}, {"expand": "key", "to": 6, "heads": [0]}]},
        {"at": 0.6, "grow": [{"expand": "layers", "at": [1]}, {"expand": "mlp", "to": 24}]},
    ],
}
TRAINING: dict[str, Any] = {
    "context": 16,
    "batch_tokens": 64,
    "evaluations": 5,
    "evaluation_tokens": 64,
    "final_tokens": 128,
}


def text_files(folder: Path) -> str:
    """Some documents that can be learned; returns their pattern."""
    random = np.random.default_rng(0)
    words = ["grow", "wide", "deep", "head", "slow", "fast", "train", "shape"]
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(40):
        text = " ".join(random.choice(words, size=200))
        (folder / f"{index}.txt").write_text(f"document {index}: {text}\n", encoding="utf-8")
    return str(folder / "*.txt")


def make_config(pattern: str, **changes: Any) -> RunConfig:
    """A run that takes about a second."""
    training = {**TRAINING, **changes.pop("training", {})}
    data = {"text": {"source": "files", "paths": [pattern]}, "validation": 0.1, "test": 0.1}
    document = {"schedule": SCHEDULE, "budget": {"flops": 3e7}, "data": data, "training": training, **changes}
    return RunConfig.model_validate(document)


def make_run(folder: Path, **changes: Any) -> tuple[Run, Corpus]:
    """A run and its data; text and cache are made in ``folder``."""
    config = make_config(text_files(folder / "text"), **changes)
    corpus = prepare(config.data, cache=folder / "cache")
    return Run.resolve(config, vocab=corpus.vocab, fingerprint=corpus.fingerprint), corpus
