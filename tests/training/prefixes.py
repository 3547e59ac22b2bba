"""Runs that share prefixes, for tests of the prefix cache."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from nasgrow.data import Corpus
from nasgrow.training.loop import train
from nasgrow.training.machine import numerics
from nasgrow.training.prefixes import PrefixCache, StateStore, following, forks
from nasgrow.training.records import CHECKPOINTS, Result, read_metrics
from nasgrow.training.run import Run
from tests.training import runs
from tests.training.runs import CPU, SCHEDULE, timeless

TIMES = tuple(round(0.1 * index, 1) for index in range(1, 9))
BUDGET = 6e7
START: dict[str, Any] = SCHEDULE["start"]
FIRST, SECOND = SCHEDULE["events"]
WIDER: dict[str, Any] = {"at": 0.8, "grow": [{"expand": "mlp", "to": 40}]}


def make_run(folder: Path, **changes: Any) -> tuple[Run, Corpus]:
    """A run whose steps are small beside the distance of its forks."""
    return runs.make_run(folder, **{"budget": {"flops": BUDGET}, **changes})


def schedule(*events: dict[str, Any]) -> dict[str, Any]:
    return {"start": START, "events": list(events)}


def cache_in(
    folder: Path, times: tuple[float, ...] = TIMES, limit: float = 1e9, share: float = math.inf
) -> PrefixCache:
    """By default runs of a moment are worth storing, whatever that takes."""
    return PrefixCache(StateStore(folder / "prefixes", limit), times, share)


def run_in(
    folder: Path,
    run: Run,
    corpus: Corpus,
    cache: PrefixCache | None = None,
    warn: Callable[[str], None] = pytest.fail,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> Result:
    folder.mkdir(exist_ok=True)
    with following(cache, run, folder, CPU, warn, stop) as prefix:
        return train(run, corpus, folder, device=CPU, warn=warn, stop=stop, prefix=prefix, **options)


def outcome(folder: Path, result: Result) -> tuple[Any, ...]:
    """All that a run leaves but for what a clock measured and what was spent: weights, moments, records."""
    stem = folder / CHECKPOINTS / f"step-{result.steps}"
    tensors = {name: value.tolist() for name, value in load_file(stem.with_suffix(".safetensors")).items()}
    rest = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))["optimizers"]
    return replace(result, seconds=0, executed=0), tensors, rest, timeless(list(read_metrics(folder)))


def charged_at(run: Run, at: float) -> int:
    """FLOPs charged at the first step that begins with a fraction of the budget spent."""
    return next(fork.charged for fork in forks(run, (at,), {}) if fork.kept)


def keys(run: Run, environment: dict[str, Any] | None = None) -> dict[int, str]:
    """The keys of a run's states by percent of the budget."""
    kept = [fork.key for fork in forks(run, TIMES, environment or numerics(CPU)) if fork.kept]
    return dict(zip([round(100 * at) for at in TIMES], kept, strict=True))
