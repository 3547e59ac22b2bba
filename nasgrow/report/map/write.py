"""Write the report of a map."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from nasgrow.errors import UserError
from nasgrow.experiments.map import Cell, GrowthMap
from nasgrow.flops import parameter_count
from nasgrow.report.budgets import share
from nasgrow.report.load import RUN_COLUMNS
from nasgrow.report.map.read import SUMMARY, read_map
from nasgrow.report.map.results import CellResult, MapRecords, Rival
from nasgrow.report.map.sections import compose, headline, weaknesses
from nasgrow.report.publish import check_replaceable, put, render
from nasgrow.report.statistics import Estimate
from nasgrow.training.atomic_files import to_json

RUN_TABLE = "runs.parquet"
"""The file with a row for each run of each cell."""

MAP_FILES = {"index.html", "report.md", "cells.csv", RUN_TABLE, SUMMARY}
"""The files that the report's folder holds, besides figures."""


def check_place(to: Path) -> None:
    """Check that a map's report may be written to ``to``.

    Raises:
        UserError: ``to`` holds something other than an older report of a map, or the table of runs
            of that report is damaged.
    """
    check_replaceable(to, MAP_FILES)
    _older_runs(to)


def write_map(found: GrowthMap, to: Path) -> str:
    """Write the report of a map into the folder ``to``, replacing an older report.

    A cell of the older report that is confirmed as the map file asks stays in the new one, unless
    its study is at hand and is confirmed with at least as many seeds.

    Args:
        found: The map.
        to: The report's folder.

    Returns:
        The headline.

    Raises:
        UserError: As for :func:`check_place` and :func:`read_map`.
    """
    check_place(to)
    records = read_map(found, to)
    runs = _runs(records, to)
    put(to, partial(_fill, found=records, runs=runs))
    return headline(records)


def _fill(beside: Path, found: MapRecords, runs: pd.DataFrame) -> None:
    render(beside, *compose(found))
    cells = {cell.name: cell for cell in found.map.cells}
    pd.DataFrame([row(cells[one.name], one) for one in found.cells]).to_csv(beside / "cells.csv", index=False)
    runs.to_parquet(beside / RUN_TABLE, index=False)
    (beside / SUMMARY).write_text(to_json(summarised(found), indent=2) + "\n", encoding="utf-8")


def _runs(found: MapRecords, to: Path) -> pd.DataFrame:
    """Return the runs of every cell; if its result is from the older report, so are its runs."""
    columns = ["cell", *RUN_COLUMNS]
    tables = [
        pd.DataFrame([{"cell": name, **run} for run in records.runs.to_dict("records")], columns=columns)
        for name, records in found.records.items()
    ]
    kept = {one.name for one in found.cells} - found.records.keys()
    older = _older_runs(to)
    if kept and older is not None:
        tables.append(older[older["cell"].isin(kept)])
    tables = [table for table in tables if len(table)]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)


def _older_runs(to: Path) -> pd.DataFrame | None:
    """Return the runs of the older report; None if there is none.

    Raises:
        UserError: They cannot be read.
    """
    file = to / RUN_TABLE
    if not file.exists():
        return None
    try:
        older = pd.read_parquet(file)
        sound = "cell" in older
    except (OSError, ValueError):  # pyarrow's errors are of these classes
        sound = False
    if not sound:
        raise UserError(f"{file}: is damaged; remove the folder {to}, or restore it from version control")
    return older


def row(cell: Cell, one: CellResult) -> dict[str, Any]:
    """Return the row of ``cells.csv`` for one cell."""
    equal = one.final.saved if one.final else None
    return {
        "cell": one.name,
        "hidden": cell.shape.hidden,
        "layers": len(cell.shape.layers),
        "parameters": parameter_count(cell.shape, cell.study.variant),
        "tokens_per_parameter": cell.tokens_per_parameter,
        "budget": cell.study.budget,
        "confirmed": one.confirmed,
        "schedule": one.schedule,
        "schedule_loss": one.loss,
        "final_loss": one.final.loss if one.final else None,
        "fixed_loss": one.fixed.loss if one.fixed else None,
        "fixed_shape": one.fixed.shape if one.fixed else None,
        "saved": share(equal.times) if equal and equal.times else None,
        "saved_more_than": share(equal.rungs[-1].times) if equal and equal.above else None,
        "saved_low": share(equal.low) if equal and equal.low else None,
        "saved_high": share(equal.high) if equal and equal.high else None,
        **_rival("final", one.final),
        **_rival("fixed", one.fixed),
        "seconds_of_final": one.final.seconds if one.final else None,
    }


def _rival(name: str, rival: Rival | None) -> dict[str, float | None]:
    return {
        **_estimate(f"less_{name}", rival.difference if rival else None),
        **_estimate(f"less_{name}_at_equal_seconds", rival.at_equal_seconds if rival else None),
    }


def _estimate(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    found = asdict(estimate) if estimate is not None else {"value": None, "low": None, "high": None}
    return {name: found["value"], f"{name}_low": found["low"], f"{name}_high": found["high"]}


def summarised(found: MapRecords) -> dict[str, Any]:
    """Return the content of ``summary.json``, from which :func:`read_published` reads the cells again."""
    return {
        "name": found.name,
        "headline": headline(found),
        "weaknesses": weaknesses(found),
        "cells": {one.name: _summarised(one) for one in found.cells},
    }


def _summarised(one: CellResult) -> dict[str, Any]:
    """Return a result as plain data, its savings without the curves that they are read off.

    These are the rungs of all cells of a row, which the summary has once.
    """
    found = asdict(one)
    for rival in (found["final"], found["fixed"]):
        saved = None if rival is None else rival.pop("saved")
        if saved is not None:
            del saved["rungs"]
            rival["equal_loss"] = saved
    return found
