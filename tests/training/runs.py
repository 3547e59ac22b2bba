"""Small runs on small data, for tests of training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nasgrow.config import RunConfig
from nasgrow.data import Corpus, prepare
from nasgrow.training.checkpoint import load
from nasgrow.training.loop import train
from nasgrow.training.records import CHECKPOINTS, Result
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


CPU = torch.device("cpu")


def weights(folder: Path, run: Run) -> dict[str, torch.Tensor]:
    """The weights that a run ended with."""
    state = load(folder / CHECKPOINTS, run, warn=pytest.fail)
    assert state is not None
    return {name: parameter.detach() for name, parameter in state.model.named_parameters()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def timeless(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what a clock measured, and what was really spent."""
    clock = {"executed", "seconds", "tokens_per_second", "peak_fraction"}
    return [{key: value for key, value in record.items() if key not in clock} for record in records]


def run_in(folder: Path, run: Run, corpus: Corpus, **options: Any) -> Result:
    folder.mkdir(exist_ok=True)
    return train(run, corpus, folder, device=CPU, **options)


def stop_after(count: int) -> Callable[[], bool]:
    """Says yes when asked for the ``count``-th time."""
    asked = itertools.count(1)
    return lambda: next(asked) == count
