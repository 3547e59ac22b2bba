"""Tables: every run of a study as a row, loss over compute, in one Parquet file.

A table of a grid is a benchmark: whatever a search of that space would train is known, so that searches are
replayed in seconds (:mod:`nasgrow.executors.table`). It holds the study that it was made by, so that nothing
else is needed.

A row is a run: ``parameters`` (JSON), ``schedule`` in words, ``seed``, ``loss`` (null if it diverged),
``charged`` FLOPs and ``seconds``; and for each place on its way, in order, ``step``, ``flops`` charged and
seconds ``elapsed`` until there, the ``key`` of its state (:mod:`nasgrow.training.prefixes.keys`),
whether it is ``kept`` for others, and where it is an evaluation its ``fraction`` of the budget and the
``validation`` loss. Seconds are null where a run reused a prefix: the whole was never measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from nasgrow.errors import UserError
from nasgrow.schedule import in_words
from nasgrow.spaces import Point
from nasgrow.study.config import dump_study, parse_study
from nasgrow.study.costs import prefix_times
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import RUNS, read_trials
from nasgrow.training.atomic_files import write_atomically
from nasgrow.training.budget_steps import evaluation_steps
from nasgrow.training.prefixes import forks
from nasgrow.training.records import read_description, read_metrics, read_result, read_run
from nasgrow.training.run import Run
from nasgrow.training.runner import evaluations
from nasgrow.training.step_seconds import StepSeconds

KEY = 16
"""Hexadecimal digits of a key that a table keeps: enough to tell its states apart."""


@dataclass(frozen=True)
class ForkPoint:
    """A place on a run's way; ``key`` is None before the first step, ``elapsed`` where it is unknown."""

    step: int
    flops: int
    key: str | None
    kept: bool
    fraction: float | None
    validation: float | None
    elapsed: float | None = None


@dataclass(frozen=True)
class RunRow:
    """A run; ``loss`` is None if it diverged, ``seconds`` if it is not known how long the whole of it takes.

    Equal runs have equal identities.
    """

    identity: str
    parameters: Mapping[str, Any]
    schedule: str
    seed: int
    loss: float | None
    charged: int
    places: tuple[ForkPoint, ...]
    seconds: float | None = None

    def time(self, begin: int, end: int) -> float:
        """The seconds between two places, told by their FLOPs; only of a run whose ``seconds`` are known."""
        clock = {place.flops: place.elapsed for place in self.places} | {0: 0.0, self.charged: self.seconds}
        before, after = clock[begin], clock[end]
        assert before is not None
        assert after is not None
        return after - before


class RunTable:
    """The runs of a study by point and seed.

    Attributes:
        timed: Whether the seconds of every run are known.
    """

    def __init__(self, study: ResolvedStudy, rows: Iterable[RunRow], about: Mapping[str, Any]) -> None:
        self.study, self.rows, self.about = study, tuple(rows), about
        self.timed = bool(self.rows) and all(row.seconds is not None for row in self.rows)
        self._runs: dict[tuple[Hashable, int], RunRow] = {}
        for row in self.rows:
            self._runs.setdefault((study.space.at(row.parameters).key, row.seed), row)

    @property
    def points(self) -> int:
        """How many points there are runs of."""
        return len({key for key, _ in self._runs})

    def losses(self, seeds: Sequence[int]) -> list[float]:
        """The loss of every point, the mean over seeds; infinite where one diverged."""
        found: dict[Hashable, list[float]] = {}
        for (key, seed), row in self._runs.items():
            if seed in seeds:
                found.setdefault(key, []).append(math.inf if row.loss is None else row.loss)
        return [fmean(values) for values in found.values()]

    def runs(self, point: Point, seeds: Sequence[int]) -> list[RunRow]:
        """The runs of a point."""
        return [self._runs[point.key, seed] for seed in seeds]


def name_run(parameters: Mapping[str, Any], seed: int) -> str:
    """The identity of a recorded run: what it was found by."""
    return json.dumps([parameters, seed], sort_keys=True)


def places(
    run: Run,
    times: Iterable[float],
    losses: Mapping[float, float],
    elapsed: Callable[[int], float] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> tuple[ForkPoint, ...]:
    """The places on a run's way.

    Args:
        run: The run.
        times: The fractions of the budget at which states are kept.
        losses: Its evaluations: fraction of the budget, and loss.
        elapsed: The seconds until so many FLOPs are charged, where they are known.
        environment: What the bits of a result depend on besides the run; without it, keys tell runs apart
            that were trained on one machine, whichever it was, and are short.
    """
    shared = {fork.step: fork for fork in forks(run, times, environment or {})}
    digits = KEY if environment is None else None
    fractions = evaluation_steps(run)
    found = []
    for step in sorted({*shared, *fractions}):
        fork, fraction = shared.get(step), fractions.get(step)
        flops = 0 if fork is None else fork.charged
        found.append(
            ForkPoint(
                step=step,
                flops=flops,
                key=None if fork is None else fork.key[:digits],
                kept=fork is not None and fork.kept,
                fraction=fraction,
                validation=None if fraction is None else losses.get(fraction),
                elapsed=None if elapsed is None else elapsed(flops),
            )
        )
    return tuple(found)


def tabulate(study: ResolvedStudy, folder: Path) -> RunTable:
    """The table of a study's trials, as its folder records them.

    Raises:
        UserError: No trial has ended, or one was pruned or paused.
    """
    rows: dict[str, RunRow] = {}
    about: dict[str, Any] = {}
    for record in read_trials(folder):
        if record.kind != "search" or record.status in ("running", "failed"):
            continue
        if record.status in ("pruned", "paused"):
            sampler, pruner = study.config.sampler.kind, study.config.pruner.kind
            right = (
                "sampler.kind must be another than tree, which pauses trials"
                if sampler == "tree"
                else f"pruner.kind must be none, not {pruner}"
            )
            raise UserError(
                f"{folder}: trial {record.number} was not trained to its end, and a table is of whole runs: "
                f"{right}"
            )
        for identity, seed in zip(record.runs, record.seeds, strict=True):
            where = folder / RUNS / identity
            run, result = read_run(where), read_result(where)
            elapsed = _elapsed(where) if result.executed >= result.charged else None
            rows[identity] = RunRow(
                identity=name_run(record.parameters, seed),
                parameters=record.parameters,
                schedule=in_words(run.schedule),
                seed=seed,
                loss=result.validation,
                charged=result.charged,
                places=places(run, prefix_times(study.space), dict(evaluations(where)), elapsed),
                seconds=None if elapsed is None else result.seconds,
            )
            about = {"fingerprint": run.fingerprint, "machine": read_description(where).machine}
            if study.config.budget.seconds is not None and study.steps is not None:
                about["steps"] = study.steps.to_json()
    if not rows:
        raise UserError(f"{folder}: no trial has ended yet")
    return RunTable(study, rows.values(), about)


def _elapsed(folder: Path) -> Callable[[int], float]:
    """The seconds that a run had taken when so many FLOPs were charged: interpolated between its records."""
    recorded = {record["charged"]: record["seconds"] for record in read_metrics(folder)}
    charged, seconds = list(recorded), list(recorded.values())
    return lambda flops: float(np.interp(flops, charged, seconds))


_SCHEMA = pa.schema(
    [
        ("parameters", pa.string()),
        ("schedule", pa.string()),
        ("seed", pa.int64()),
        ("loss", pa.float64()),
        ("charged", pa.int64()),
        ("step", pa.list_(pa.int32())),
        ("flops", pa.list_(pa.int64())),
        ("key", pa.list_(pa.string())),
        ("kept", pa.list_(pa.bool_())),
        ("fraction", pa.list_(pa.float64())),
        ("validation", pa.list_(pa.float32())),
        ("seconds", pa.float32()),
        ("elapsed", pa.list_(pa.float32())),
    ]
)
_RUN = ("schedule", "seed", "loss", "charged", "seconds")
_PLACE = ("step", "flops", "key", "kept", "fraction", "validation", "elapsed")
_TIMES = ("seconds", "elapsed")
"""What older tables lack."""


def write_table(table: RunTable, path: Path) -> None:
    """Write a table; whole, or not at all."""
    lists = {name: [[getattr(place, name) for place in row.places] for row in table.rows] for name in _PLACE}
    columns = {
        "parameters": [json.dumps(dict(row.parameters)) for row in table.rows],
        **{name: [getattr(row, name) for row in table.rows] for name in _RUN},
        **lists,
    }
    said = {"study": dump_study(table.study.config), "about": json.dumps(table.about)}
    written = pa.table(columns, schema=_SCHEMA.with_metadata(said))
    write_atomically(path, lambda beside: pq.write_table(written, beside, compression="zstd"))


def check_table(path: Path) -> dict[str, str]:
    """What a table says of itself.

    Raises:
        UserError: It is none.
    """
    try:
        schema = pq.read_schema(path)
    except pa.ArrowException:
        raise UserError(f"{path}: is not a Parquet file") from None
    said = {name.decode(): value.decode() for name, value in (schema.metadata or {}).items()}
    if "study" not in said or not {*_SCHEMA.names} - {*_TIMES} <= {*schema.names}:
        raise UserError(f"{path}: is not a table of runs: nasgrow table writes one")
    return said


def read_table(path: Path) -> RunTable:
    """Read a table.

    Raises:
        UserError: It is none.
    """
    said = check_table(path)
    try:
        read = pq.read_table(path)
    except (pa.ArrowException, OSError):  # an OSError is what the library says of a page it cannot unpack
        raise UserError(f"{path}: is damaged") from None
    config = parse_study(said["study"], str(path))
    if isinstance(config.space, dict) and "python" in config.space:
        raise UserError(f"{path}: its space is a Python function, and a table may not name code to run")
    about = json.loads(said.get("about", "{}"))
    steps = StepSeconds.from_json(about["steps"]) if "steps" in about else None
    study = ResolvedStudy.resolve(config, str(path), steps)
    return RunTable(study, map(_row, read.to_pylist()), about)


def _row(told: Mapping[str, Any]) -> RunRow:
    """A run as a file holds it."""
    along = [told.get(name) or [None] * len(told["step"]) for name in _PLACE]
    way = (ForkPoint(**dict(zip(_PLACE, values, strict=True))) for values in zip(*along, strict=True))
    whole: dict[str, Any] = {name: told.get(name) for name in _RUN}
    parameters = json.loads(told["parameters"])
    identity = name_run(parameters, whole["seed"])
    return RunRow(identity=identity, parameters=parameters, places=tuple(way), **whole)
