"""Read and judge the cells of a map: the compute saved, and whether growth beats the best fixed shape.

The result of a cell is plain data, which ``summary.json`` holds. So a map that is continued on another
machine, or without its runs, keeps the confirmed cells of its report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from nasgrow.errors import UserError
from nasgrow.experiments.map import Cell, Confirmed, GrowthMap
from nasgrow.report.budgets import Rung
from nasgrow.report.findings import Findings, find
from nasgrow.report.integrity import of_saving
from nasgrow.report.load import Records
from nasgrow.report.map.results import CellResult, MapRecords, Rival, Spent
from nasgrow.report.map.rows import along_rows
from nasgrow.report.ranking import Contender
from nasgrow.report.statistics import Estimate
from nasgrow.report.verdict import Comparison
from nasgrow.strict import read_as
from nasgrow.study.config import STUDY, differences, dump_study, parse_study
from nasgrow.study.study import open_study

SUMMARY = "summary.json"
"""The file of a map's report that holds the results of its cells."""

MOST_SUMMARY_BYTES = 16_000_000
"""The most bytes of that file. A cell takes some 20,000, with three seeds and three budgets."""

HOW_MUCH = ("trials", "total_flops", "hours")
"""The fields of a study that limit its search. They may change between launches, but a published cell counts
only if its search had the same limits."""


@dataclass(frozen=True)
class _Published:
    cells: Mapping[str, CellResult]


_PUBLISHED = TypeAdapter(_Published)


def read_map(found: GrowthMap, report: Path) -> MapRecords:
    """Read and judge the cells of a map whose studies have started.

    Args:
        found: The map.
        report: The folder of its earlier report, if there is one. A confirmed cell there counts if
            its study is not at hand, is not confirmed, or is confirmed with fewer seeds.

    Raises:
        UserError: As for :func:`read_published` and :func:`judge_cell`.
    """
    published = read_published(found, report)
    results, records = [], {}
    for cell in found.cells:
        there = published.get(cell.name)
        if at_hand(cell.folder):
            result, own = judge_cell(cell, found.config.confirm)
            if there is None or result.seeds >= there.seeds:
                results.append(result)
                records[cell.name] = own
                continue
        if there is not None:
            results.append(there)
    return MapRecords(found.name, found, along_rows(found, results), records)


def at_hand(folder: Path) -> bool:
    """Return whether a cell's folder has a study file, as it does once its study has started."""
    return (folder / STUDY).is_file()


def read_published(found: GrowthMap, report: Path) -> dict[str, CellResult]:
    """Return the confirmed cells of an earlier report that answer what the map file asks, by name.

    It is empty if there is no report in the folder.

    Raises:
        UserError: The report is damaged. Or one of its confirmed cells does not answer what the map
            file asks, and its runs are not at hand: a new report would lose it.
    """
    if not (report / SUMMARY).exists():
        return {}
    try:
        there = read_as(report / SUMMARY, _PUBLISHED, MOST_SUMMARY_BYTES).cells
    except UserError as error:
        problem = str(error).partition(";")[0]
        raise UserError(
            f"{problem}, or another version of nasgrow wrote it; remove the folder {report}, restore it from "
            "version control, or choose another with --to"
        ) from None
    cells = {cell.name: cell for cell in found.cells}
    runs = found.cells[0].folder.parent
    published = {}
    for name, one in there.items():
        if not one.confirmed:
            continue
        changed = _changed(one, cells.get(name), found.config.confirm)
        if changed is None:
            published[name] = one
        elif not at_hand(runs / name):
            raise UserError(
                f"{report}: has the confirmed cell {name}, but the map file asks for something else "
                f"({changed}), and its runs are not at hand, so a new report would lose it: choose another "
                "folder with --to, or remove the report"
            )
    return published


def _changed(one: CellResult, cell: Cell | None, confirm: Confirmed) -> str | None:
    """Return the first difference between a published cell and what the map file asks for, if any."""
    if cell is None:
        return "the file has no such cell"
    try:
        before, after = parse_study(one.study, "its study"), cell.study.config
    except UserError as error:
        return str(error)
    changes = differences(before, after)
    for field in HOW_MUCH:
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            changes.append(f"{field}: {old!r} became {new!r}")
    if one.top != confirm.top:
        changes.append(f"confirm.top: {one.top} became {confirm.top}")
    if one.seeds < confirm.seeds:
        changes.append(f"confirm.seeds: the report has {one.seeds}, the file asks for {confirm.seeds}")
    return changes[0] if changes else None


def judge_cell(cell: Cell, confirm: Confirmed) -> tuple[CellResult, Records]:
    """Read and judge the study of a cell; return its result and its records.

    Records of trials and runs that are damaged are left out; a weakness of the result lists them.

    Args:
        cell: The cell, whose study must have started.
        confirm: How the map confirms cells.

    Raises:
        UserError: The cell's study was started with other settings than the map file now gives it,
            or its study file or its measured step times are damaged.
    """
    study, _ = open_study(cell.folder)
    changed = differences(study.config, cell.study.config)
    if changed:
        raise UserError(f"{cell.folder}: was started with other settings than the map file has: {changed[0]}")
    found = find(study, cell.folder)
    verdict, trials = found.verdict, [trial.record for trial in found.records.trials]
    rivals = {one.is_final: _rival(one, found) for one in reversed(verdict.comparisons)}
    of_own_budgets = {
        line for one in verdict.comparisons for line in of_saving(one.rival, one.equal, verdict.currency)
    }
    result = CellResult(
        name=cell.name,
        study=dump_study(cell.study.config),
        top=confirm.top,
        seeds=_seeds(found),
        texts=tuple(sorted(found.records.origins.fingerprints)),
        confirmed=verdict.confirmed and (True in rivals or verdict.diverged),
        diverged=verdict.diverged,
        schedule=verdict.ours.trial.record.words if verdict.ours else None,
        loss=verdict.ours.mean if verdict.ours else None,
        losses=verdict.ours.by_seed if verdict.ours else None,
        final=rivals.get(True),
        fixed=rivals.get(False, rivals.get(True)),
        weaknesses=tuple(line for line in found.integrity.weaknesses if line not in of_own_budgets),
        spent=Spent(
            trials=len(trials),
            charged=sum(one.charged for one in trials),
            executed=sum(one.executed for one in trials),
            seconds=sum(one.seconds for one in trials),
        ),
    )
    return result, found.records


def _seeds(found: Findings) -> int:
    """Return the least number of fresh seeds that any model compared by a cell's verdict has."""
    verdict, ranking = found.verdict, found.ranking
    if not verdict.confirmed:
        return 0
    every = [*ranking.confirmed, *ranking.confirmed_others, *ranking.diverged]
    if verdict.ours is None:
        compared = [one for one in every if one.trial.grows] + [
            max((one for one in every if not one.trial.grows and one.times == 1), key=_trained)
        ]
    else:
        compared = [verdict.ours, *(one.theirs for one in verdict.comparisons)]
    final = [one for one in every if one.trial.schedule.start == ranking.final.size.shape]
    counts = [_trained(one) for one in compared]
    for times in (1.0, *found.records.study.config.baselines.budgets):
        rung = [_trained(one) for one in final if math.isclose(one.times, times, rel_tol=1e-3)]
        counts.append(max(rung, default=0))
    return min(counts)


def _trained(one: Contender) -> int:
    """Return the number of fresh seeds of a candidate: trainings that finished or diverged."""
    return sum(trial.record.status in ("finished", "diverged") for trial in one.trials)


def _rival(comparison: Comparison, found: Findings) -> Rival:
    seconds, equal = comparison.seconds, comparison.equal
    return Rival(
        shape=str(comparison.theirs.trial.schedule.start),
        loss=comparison.theirs.mean,
        outcome=comparison.outcome if comparison.difference.low is not None else "open",
        difference=comparison.difference,
        at_equal_seconds=_at_equal_seconds(comparison, found),
        seconds=None if seconds is None else seconds.ratio,
        rungs=equal.rungs if equal is not None else (Rung(1.0, comparison.theirs.by_seed),),
        saved=equal,
        unconfirmed=0 if comparison.is_final else found.verdict.unconfirmed,
    )


def _at_equal_seconds(comparison: Comparison, found: Findings) -> Estimate | None:
    if comparison.seconds is not None:
        return comparison.seconds.difference
    ours = found.verdict.ours
    measured = ours is not None and ours.per_run("schedule_seconds") > 0
    return comparison.difference if measured else None  # both take as long at the study's budget
