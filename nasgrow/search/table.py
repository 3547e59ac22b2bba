"""Tables: every run of a study as a row, loss over compute, in one Parquet file.

A table of a grid is a benchmark: whatever a search of that space would train is known, so that searches are
replayed in seconds (:mod:`nasgrow.search.replay`). It tells the study that it was made by, so that nothing
else is needed.

A row is a run: ``parameters`` (JSON), ``schedule`` in words, ``seed``, ``loss`` (null if it diverged) and
``charged`` FLOPs; and for each place on its way, in order, ``step``, ``flops`` charged until there, the
``key`` of its state (:mod:`nasgrow.training.trunks.keys`), whether it is ``kept`` for others, and where it is
an evaluation its ``fraction`` of the budget and the ``validation`` loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from nasgrow.schedule import in_words
from nasgrow.search.config import dump_study, parse_study
from nasgrow.search.outcome import RUNS, evaluations
from nasgrow.search.prices import Way
from nasgrow.search.spaces import Point
from nasgrow.search.study import Study
from nasgrow.search.trials import read_trials
from nasgrow.search.trunks import trunk_times
from nasgrow.training.files import write_atomically
from nasgrow.training.folder import read_machine, read_result, read_run
from nasgrow.training.grid import evaluation_steps
from nasgrow.training.run import Run
from nasgrow.training.trunks import forks

KEY = 16
"""Hexadecimal digits of a key that a table keeps: enough to tell its states apart."""


@dataclass(frozen=True)
class Place:
    """A place on a run's way; ``key`` is None before the first step."""

    step: int
    flops: int
    key: str | None
    kept: bool
    fraction: float | None
    validation: float | None


@dataclass(frozen=True)
class Row:
    """A run; ``loss`` is None if it diverged."""

    parameters: Mapping[str, Any]
    schedule: str
    seed: int
    loss: float | None
    charged: int
    places: tuple[Place, ...]

    @property
    def way(self) -> Way:
        """What of it can be shared."""
        identity = json.dumps([self.parameters, self.seed], sort_keys=True)
        states = tuple((place.key, place.flops) for place in self.places if place.key is not None)
        return Way(identity, states, self.charged)


class Table:
    """The runs of a study by point and seed."""

    def __init__(self, study: Study, rows: Iterable[Row], about: Mapping[str, Any]) -> None:
        self.study, self.rows, self.about = study, tuple(rows), about
        self._runs: dict[tuple[Hashable, int], Row] = {}
        for row in self.rows:
            self._runs.setdefault((study.space.at(row.parameters).key, row.seed), row)
        self._ways = {identity: row.way for identity, row in self._runs.items()}

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

    def runs(self, point: Point, seeds: Sequence[int]) -> list[Row]:
        """The runs of a point."""
        return [self._runs[point.key, seed] for seed in seeds]

    def ways(self, point: Point, seeds: Sequence[int]) -> list[Way]:
        """What of them can be shared."""
        return [self._ways[point.key, seed] for seed in seeds]


def places(run: Run, times: Iterable[float], losses: Mapping[float, float]) -> tuple[Place, ...]:
    """The places on a run's way.

    Args:
        run: The run.
        times: The fractions of the budget at which states are kept.
        losses: Its evaluations: fraction of the budget, and loss.
    """
    # Keys tell runs apart that were trained on one machine: which one does not matter.
    shared = {fork.step: fork for fork in forks(run, times, {})}
    fractions = evaluation_steps(run)
    found = []
    for step in sorted({*shared, *fractions}):
        fork, fraction = shared.get(step), fractions.get(step)
        found.append(
            Place(
                step=step,
                flops=0 if fork is None else fork.charged,
                key=None if fork is None else fork.key[:KEY],
                kept=fork is not None and fork.kept,
                fraction=fraction,
                validation=None if fraction is None else losses.get(fraction),
            )
        )
    return tuple(found)


def tabulate(study: Study, folder: Path) -> Table:
    """The table of a study's trials, as its folder records them.

    Raises:
        ValueError: No trial has ended, or one was given up early.
    """
    rows: dict[str, Row] = {}
    about: dict[str, Any] = {}
    for record in read_trials(folder):
        if record.kind != "search":
            continue
        if record.status == "pruned":
            raise ValueError(
                f"{folder}: trial {record.number} was given up early, and a table is of whole runs: "
                "pruner.kind must be none"
            )
        for identity, seed in zip(record.runs, record.seeds, strict=True):
            run, result = read_run(folder / RUNS / identity), read_result(folder / RUNS / identity)
            rows[identity] = Row(
                parameters=record.parameters,
                schedule=in_words(run.schedule),
                seed=seed,
                loss=result.validation,
                charged=result.charged,
                places=places(run, trunk_times(study.space), dict(evaluations(folder / RUNS / identity))),
            )
            about = {"fingerprint": run.fingerprint, "machine": read_machine(folder / RUNS / identity)}
    if not rows:
        raise ValueError(f"{folder}: no trial has ended yet")
    return Table(study, rows.values(), about)


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
    ]
)
_PLACE = ("step", "flops", "key", "kept", "fraction", "validation")


def write_table(table: Table, path: Path) -> None:
    """Write a table; whole, or not at all."""
    lists = {name: [[getattr(place, name) for place in row.places] for row in table.rows] for name in _PLACE}
    columns = {
        "parameters": [json.dumps(dict(row.parameters)) for row in table.rows],
        **{
            name: [getattr(row, name) for row in table.rows]
            for name in ("schedule", "seed", "loss", "charged")
        },
        **lists,
    }
    said = {"study": dump_study(table.study.config), "about": json.dumps(table.about)}
    written = pa.table(columns, schema=_SCHEMA.with_metadata(said))
    write_atomically(path, lambda beside: pq.write_table(written, beside, compression="zstd"))


def check_table(path: Path) -> dict[str, str]:
    """What a table says of itself.

    Raises:
        ValueError: It is none.
    """
    try:
        schema = pq.read_schema(path)
    except pa.ArrowException:
        raise ValueError(f"{path}: is not a Parquet file") from None
    said = {name.decode(): value.decode() for name, value in (schema.metadata or {}).items()}
    if "study" not in said or not {*_SCHEMA.names} <= {*schema.names}:
        raise ValueError(f"{path}: is not a table of runs: nasgrow table writes one")
    return said


def read_table(path: Path) -> Table:
    """Read a table.

    Raises:
        ValueError: It is none.
    """
    said = check_table(path)
    try:
        read = pq.read_table(path)
    except pa.ArrowException:
        raise ValueError(f"{path}: is damaged") from None
    config = parse_study(said["study"], str(path))
    if isinstance(config.space, dict) and "python" in config.space:
        raise ValueError(f"{path}: its space is a Python function, and a table may not name code to run")
    study = Study.resolve(config, str(path))
    rows = [
        Row(
            parameters=json.loads(row["parameters"]),
            places=tuple(
                Place(**dict(zip(_PLACE, values, strict=True)))
                for values in zip(*(row[name] for name in _PLACE), strict=True)
            ),
            **{name: row[name] for name in ("schedule", "seed", "loss", "charged")},
        )
        for row in read.to_pylist()
    ]
    return Table(study, rows, json.loads(said.get("about", "{}")))
