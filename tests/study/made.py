"""A table that nobody trained: losses by a formula, ways as they would be."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import exp
from pathlib import Path
from typing import Any

from nasgrow.config import Budget, TrainingConfig
from nasgrow.schedule import in_words
from nasgrow.shape import Shape
from nasgrow.spaces.grid import points
from nasgrow.strict import parse
from nasgrow.study.config import StudyConfig
from nasgrow.study.costs import prefix_times
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.table import RunRow, RunTable, name_run, places
from nasgrow.training.run import Run

CONFIG = StudyConfig(
    name="made",
    final=Shape.uniform(hidden=16, layers=2, mlp=64, heads=2, key=8, value=8),
    budget=Budget(flops=2e9),
    training=TrainingConfig(context=64, batch_tokens=512),
    space={
        "kind": "per-dimension",
        "dims": {dim: {"start": [1, 0.5]} for dim in ("hidden", "layers", "mlp")},
        "times": {"low": 0.2, "high": 0.8, "step": 0.2},
    },
    objectives=["loss"],
    tune={"learning_rate.peak": ["x1"]},
    trials=100,
)
BEST = {"hidden": 0.2, "layers": 0.6, "mlp": 0.4}
"""When each dimension is best grown."""


@cache
def made_table() -> RunTable:
    """125 points, one seed."""
    study = ResolvedStudy.resolve(CONFIG, "made")
    rows = []
    for parameters in points(study.space).values():
        point = study.space.at(parameters)
        run = Run.resolve(study.run(point.schedule, point.training, 0), vocab=256, fingerprint="made")
        losses = {index / 20: _loss(parameters, index / 20) + 2 * exp(-index / 5) for index in range(20)}
        last = run.stages[-1]
        way, loss = places(run, prefix_times(study.space), losses), _loss(parameters, 1.0)
        name = name_run(parameters, 0)
        rows.append(RunRow(name, parameters, in_words(run.schedule), 0, loss, last.charged(last.end), way))
    return RunTable(study, rows, {})


def _loss(parameters: Mapping[str, Any], now: float) -> float:
    """The loss but for what training brings: by what was grown when until now, and by nothing later."""
    loss = 2.0
    for dim, best in BEST.items():
        grown = min(now, parameters[f"at.{dim}"])
        loss += (grown - best) ** 2 if parameters[f"start.{dim}"] < 1 else 0.15
    return loss


def large_study(name: str, **changes: Any) -> ResolvedStudy:
    """A study of ``per-dimension.yaml`` with 20 parameters and no end, for benchmarks."""
    data = {
        "name": name,
        "final": {"hidden": 64, "layers": 4, "mlp": 256, "heads": 4, "key": 16, "value": 16},
        "budget": {"flops": 1e12},
        "space": str(Path(__file__).parents[2] / "search_spaces" / "per-dimension.yaml"),
        "pruner": {"kind": "none"},
        "trials": 1_000_000,
        **changes,
    }
    return ResolvedStudy.resolve(parse(StudyConfig, data, name), name)
