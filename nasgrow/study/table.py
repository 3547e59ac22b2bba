"""Tables: all runs of a study with their learning curves, a row for each, in one Parquet file.

The table of a grid is a benchmark: it has the result of every point, so that searches of that space can be
replayed in seconds (:mod:`nasgrow.executors.table`). The file holds the study too, so that nothing else is
needed.

A row is a run: ``parameters`` (JSON), ``schedule`` in words, ``seed``, ``loss`` (null if it diverged),
``charged`` FLOPs and ``seconds``. Lists hold the places along the run, in order: places are evaluations, and
steps at which the prefix cache may keep a state. Each place has its ``step``, the charged ``flops`` and the
seconds ``elapsed`` until there, the ``key`` of its state (:mod:`nasgrow.training.prefixes.keys`), and whether
the state is ``kept`` for other runs. An evaluation also has its ``fraction`` of the budget and its
``validation`` loss. Seconds are null if the run reused a prefix, because no process timed all of it.
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
"""The number of hexadecimal digits of a key in a table: enough to distinguish its states."""


@dataclass(frozen=True)
class ForkPoint:
    """A place along a run: an evaluation, or a step at which the prefix cache may keep a state.

    Attributes:
        step: The training step.
        flops: FLOPs charged until there.
        key: The key of the state in the prefix cache; None before the first step.
        kept: Whether the cache keeps the state for other runs.
        fraction: The fraction of the budget, if it is an evaluation.
        validation: The validation loss, if it is an evaluation.
        elapsed: Seconds until there; None if unknown.
    """

    step: int
    flops: int
    key: str | None
    kept: bool
    fraction: float | None
    validation: float | None
    elapsed: float | None = None


@dataclass(frozen=True)
class RunRow:
    """A recorded run.

    Attributes:
        identity: Equal for equal runs.
        parameters: The parameters of its point.
        schedule: Its schedule in words.
        seed: Its seed.
        loss: The final validation loss; None if it diverged.
        charged: FLOPs charged for the whole run.
        places: The places along the run, in order.
        seconds: Seconds of the whole run; None if unknown.
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
        """Return the seconds between two places, given by their charged FLOPs.

        The start (0) and the end (``charged``) of the run are places too. ``seconds`` must be
        known.
        """
        clock = {place.flops: place.elapsed for place in self.places} | {0: 0.0, self.charged: self.seconds}
        before, after = clock[begin], clock[end]
        assert before is not None
        assert after is not None
        return after - before


class RunTable:
    """The recorded runs of a study, found by point and seed.

    Args:
        study: The study.
        rows: Its runs.
        about: Where they were trained: the data's fingerprint, the machine, and measured seconds of steps.

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
        """The number of distinct points that have a run."""
        return len({key for key, _ in self._runs})

    def losses(self, seeds: Sequence[int]) -> list[float]:
        """Return every point's mean loss over its runs of these seeds; infinite if one diverged.

        A point may lack some of the seeds. Points that lack all of them are left out.
        """
        found: dict[Hashable, list[float]] = {}
        for (key, seed), row in self._runs.items():
            if seed in seeds:
                found.setdefault(key, []).append(math.inf if row.loss is None else row.loss)
        return [fmean(values) for values in found.values()]

    def runs(self, point: Point, seeds: Sequence[int]) -> list[RunRow]:
        """Return the run of a point for each seed; ``KeyError`` if one is not in the table."""
        return [self._runs[point.key, seed] for seed in seeds]


def name_run(parameters: Mapping[str, Any], seed: int) -> str:
    """Return the identity of a recorded run, made of its parameters and seed."""
    return json.dumps([parameters, seed], sort_keys=True)


def places(
    run: Run,
    times: Iterable[float],
    losses: Mapping[float, float],
    elapsed: Callable[[int], float] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> tuple[ForkPoint, ...]:
    """Return the places along a run: its evaluations, and the steps at which its state may be cached.

    Args:
        run: The run.
        times: The fractions of the budget at which states are kept.
        losses: The validation loss at each evaluation, by fraction of the budget.
        elapsed: Called with a number of charged FLOPs; returns the seconds until then. None if the
            times are unknown.
        environment: The hardware and software that the exact bits of a result depend on, which are part of
            the keys. If None, keys are short, and independent of the machine that trained the runs.
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
    """Make the table of the search trials that a study's folder records.

    Trials that are running or have failed are left out, and a run that several trials share is one
    row.

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
                f"{folder}: trial {record.number} was not trained to its end, and a table needs complete "
                f"runs: {right}"
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
    """Return the function from charged FLOPs to seconds of a run, interpolated between its records."""
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
"""Columns that older tables lack."""


def write_table(table: RunTable, path: Path) -> None:
    """Write a table atomically."""
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
    """Return the metadata of a table file: ``study``, the study file's text, and ``about`` as JSON.

    Raises:
        UserError: It is not a table.
        OSError: The file cannot be read, or does not exist.
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
        UserError: It is not a table, is damaged, or its space is a Python function.
        OSError: The file cannot be opened, or does not exist.
    """
    said = check_table(path)
    try:
        read = pq.read_table(path)
    except (pa.ArrowException, OSError):  # the library raises OSError for a page that it cannot decompress
        raise UserError(f"{path}: is damaged") from None
    config = parse_study(said["study"], str(path))
    if isinstance(config.space, dict) and "python" in config.space:
        raise UserError(f"{path}: its space is a Python function, and a table may not name code to run")
    about = json.loads(said.get("about", "{}"))
    steps = StepSeconds.from_json(about["steps"]) if "steps" in about else None
    study = ResolvedStudy.resolve(config, str(path), steps)
    return RunTable(study, map(_row, read.to_pylist()), about)


def _row(told: Mapping[str, Any]) -> RunRow:
    """Convert a row of a table file to a run."""
    along = [told.get(name) or [None] * len(told["step"]) for name in _PLACE]
    way = (ForkPoint(**dict(zip(_PLACE, values, strict=True))) for values in zip(*along, strict=True))
    whole: dict[str, Any] = {name: told.get(name) for name in _RUN}
    parameters = json.loads(told["parameters"])
    identity = name_run(parameters, whole["seed"])
    return RunRow(identity=identity, parameters=parameters, places=tuple(way), **whole)
