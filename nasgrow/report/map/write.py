"""Write the report of a map."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from nasgrow.experiments.map import GrowthMap
from nasgrow.flops import parameter_count
from nasgrow.report.budgets import share
from nasgrow.report.load import RUN_COLUMNS
from nasgrow.report.map.read import Judged, MapRecords, apart, at_equal_seconds, read_map, seconds_apart
from nasgrow.report.map.sections import compose, headline, weaknesses
from nasgrow.report.publish import check_replaceable, put, render
from nasgrow.report.statistics import Estimate
from nasgrow.report.summary import summarise
from nasgrow.training.atomic_files import to_json

MAP_FILES = {"index.html", "report.md", "cells.csv", "runs.parquet", "summary.json"}
"""The files that the report's folder holds, besides figures."""


def check_place(to: Path) -> None:
    """Raise ``UserError`` unless a map's report may be written to ``to``."""
    check_replaceable(to, MAP_FILES)


def write_map(found: GrowthMap, to: Path) -> str:
    """Write the report of a map into the folder ``to``, replacing an older report; return its headline."""
    check_place(to)
    records = read_map(found)
    put(to, lambda beside: _fill(beside, records))
    return headline(records)


def _fill(beside: Path, found: MapRecords) -> None:
    render(beside, *compose(found))
    pd.DataFrame([row(one) for one in found.cells]).to_csv(beside / "cells.csv", index=False)
    runs = [
        {"cell": one.cell.folder.name, **run}
        for one in found.cells
        for run in one.found.records.runs.to_dict("records")
    ]
    pd.DataFrame(runs, columns=["cell", *RUN_COLUMNS]).to_parquet(beside / "runs.parquet", index=False)
    (beside / "summary.json").write_text(to_json(summarised(found), indent=2) + "\n", encoding="utf-8")


def row(one: Judged) -> dict[str, Any]:
    """Return the row of ``cells.csv`` for one cell."""
    cell, ours, equal = one.cell, one.found.verdict.ours, one.saved
    seconds = at_equal_seconds(one.final)
    return {
        "cell": cell.folder.name,
        "hidden": cell.shape.hidden,
        "layers": len(cell.shape.layers),
        "parameters": parameter_count(cell.shape, cell.study.variant),
        "tokens_per_parameter": cell.tokens_per_parameter,
        "budget": cell.study.budget,
        "confirmed": one.confirmed,
        "schedule": None if ours is None else ours.trial.record.words,
        "schedule_loss": None if ours is None else ours.mean,
        "final_loss": None if one.final is None else one.final.theirs.mean,
        "fixed_loss": None if one.fixed is None else one.fixed.theirs.mean,
        "fixed_shape": None if one.fixed is None else str(one.fixed.theirs.trial.schedule.start),
        "saved": share(equal.times) if equal and equal.times else None,
        "saved_more_than": share(equal.rungs[-1].times) if equal and equal.above else None,
        "saved_low": share(equal.low) if equal and equal.low else None,
        "saved_high": share(equal.high) if equal and equal.high else None,
        **_estimate("less_final", apart(one.final)),
        **_estimate("less_fixed", apart(one.fixed)),
        **_estimate("less_final_at_equal_seconds", seconds_apart(one, one.final)),
        **_estimate("less_fixed_at_equal_seconds", seconds_apart(one, one.fixed)),
        "seconds_of_final": None if seconds is None else seconds.ratio,
    }


def _estimate(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    found = asdict(estimate) if estimate is not None else {"value": None, "low": None, "high": None}
    return {name: found["value"], f"{name}_low": found["low"], f"{name}_high": found["high"]}


def summarised(found: MapRecords) -> dict[str, Any]:
    """Return the content of ``summary.json``."""
    return {
        "name": found.name,
        "headline": headline(found),
        "weaknesses": weaknesses(found),
        "cells": {one.cell.folder.name: {**summarise(one.found), **row(one)} for one in found.cells},
    }
