"""Compose the report of a map from its sections."""

from __future__ import annotations

from collections.abc import Callable

from nasgrow.report import words
from nasgrow.report.budgets import share
from nasgrow.report.figures import map as figures
from nasgrow.report.map.read import Judged, MapRecords, at_equal_seconds
from nasgrow.report.page import Bullets, Page, PageTable, Paragraph, Section, Tile, Tiles, Tone
from nasgrow.report.sections.common import Gallery, aside, made


def compose(found: MapRecords) -> tuple[Page, Gallery]:
    """Return the page of a map and its figures."""
    gallery = Gallery()
    shapes, budgets = len(found.map.grid), len(found.map.grid[0])
    page = Page(
        title=found.name,
        facts=f"{shapes} final shapes at {budgets} budgets: {shapes * budgets} studies, "
        f"{len(found.confirmed)} of them confirmed.",
        headline=headline(found),
        tone=_tone(found),
        sections=[section(found, gallery) for section in MAP_SECTIONS],
        made=made(),
        kind="Map of growth studies",
    )
    return page, gallery


def headline(found: MapRecords) -> str:
    """Say in one line where growth pays."""
    cells = found.confirmed
    if not cells:
        return "No answer yet: no cell is confirmed."
    saves, beats = (sum(one == "won" for one in each) for each in zip(*_outcomes(cells), strict=True))
    return (
        f"Growth reaches a lower test loss than its final shape from scratch in {saves} of "
        f"{words.many(len(cells), 'confirmed cell')}, and than the best fixed shape searched in {beats}, "
        "at equal compute."
    )


def _outcomes(cells: list[Judged]) -> list[tuple[str, str]]:
    return [(one.saves, one.beats) for one in cells]


def _tone(found: MapRecords) -> Tone:
    beats = {one.beats for one in found.confirmed}
    return "won" if beats == {"won"} else "lost" if beats == {"lost"} else "open"


def _answer(found: MapRecords, gallery: Gallery) -> Section:
    section = Section("Where growth pays")
    cells = found.confirmed
    if cells:
        section.blocks.append(Tiles(_tiles(found)))
        section.blocks.append(Bullets(_boundary(found)))
    nothing = "Nothing to show yet: no cell is confirmed."
    section.blocks.append(
        gallery.show_or_say(
            "saving",
            figures.savings(found),
            "The share of compute that growth saves over training its final shape from scratch, at the loss "
            "of the best schedule, with 95% intervals. A frame marks cells in which growth has the lower "
            "loss at equal compute, at the 95% level. Cells that are not confirmed are left blank.",
            nothing,
        )
    )
    section.blocks.append(
        gallery.show_or_say(
            "differences",
            figures.differences(found),
            "The rival's loss minus that of the best schedule: growth is ahead where it is positive. A frame "
            "marks cells in which growth is ahead at the 95% level. A square is empty if the rival was not "
            "trained for as long.",
            nothing,
        )
    )
    return section


def _tiles(found: MapRecords) -> list[Tile]:
    cells = found.confirmed
    savings = [(share(times), one) for one in cells if (times := _times(one)) is not None]
    tiles = []
    if savings:
        most, one = max(savings, key=lambda pair: pair[0])
        assert one.saved is not None
        more = "> " if one.saved.times is None else ""
        detail = f"{one.cell.folder.name}{words.saved_interval(one.saved)}"
        tiles.append(Tile(f"{more}{most:.0%}", "the largest saving of compute at equal loss", detail))
    apart = [(one.fixed.difference, one) for one in cells if one.fixed]
    if apart:
        least, one = min(apart, key=lambda pair: pair[0].value)
        detail = f"{one.cell.folder.name}, 95% interval {words.interval(least)}"
        label = "test loss minus that of the best fixed shape, where growth does best"
        tiles.append(Tile(words.signed(least.value), label, detail))
    return tiles


def _times(one: Judged) -> float | None:
    """Return the budget at which the final shape has the schedule's loss, or the largest one trained."""
    if one.saved is None:
        return None
    return one.saved.rungs[-1].times if one.saved.above else one.saved.times


def _boundary(found: MapRecords) -> list[str]:
    """Return a sentence for each final shape: the budgets at which growth pays, and at which it loses."""
    lines = []
    for row in range(len(found.map.grid)):
        known = [one for column in range(len(found.map.grid[0])) if (one := found.at(row, column))]
        if not known:
            continue
        won = [one.cell.tokens_per_parameter for one in known if one.saves == "won"]
        lost = [one.cell.tokens_per_parameter for one in known if one.saves == "lost"]
        tried = [one.cell.tokens_per_parameter for one in known]
        but = f" It loses at {_numbers(lost)}." if lost else ""
        lines.append(
            f"{figures.row_name(found, row)}: against the same final shape, growth pays at "
            f"{_numbers(won) if won else 'none'} of {_numbers(tried)} tokens per parameter.{but}"
        )
    return lines


def _numbers(values: list[float]) -> str:
    return words.listed([f"{value:g}" for value in sorted(values)])


def _cells(found: MapRecords, gallery: Gallery) -> Section:
    rows = []
    for one in found.cells:
        ours = one.found.verdict.ours
        if ours is None or one.final is None or one.fixed is None:
            continue
        seconds = at_equal_seconds(one.final)
        rows.append(
            [
                one.cell.folder.name,
                one.found.verdict.split,
                words.loss(ours.mean),
                words.loss(one.final.theirs.mean),
                words.loss(one.fixed.theirs.mean),
                words.signed(one.fixed.difference.value),
                words.interval(one.fixed.difference) if one.confirmed else "",
                "" if seconds is None else f"{seconds.ratio:.2f}",
                ours.trial.record.words,
                str(one.fixed.theirs.trial.schedule.start),
            ]
        )
    columns = [
        "cell",
        "split",
        "best schedule",
        "final shape",
        "best fixed",
        "minus best fixed",
        "95% interval",
        "times the final's seconds",
        "schedule",
        "best fixed shape",
    ]
    text = frozenset({"cell", "split", "95% interval", "schedule", "best fixed shape"})
    section = Section("Every cell")
    section.blocks.append(PageTable(columns, rows, text) if rows else aside("No cell has a result yet."))
    return section


def _weak(found: MapRecords, gallery: Gallery) -> Section:
    return Section("What weakens this", [Bullets(weaknesses(found))])


def weaknesses(found: MapRecords) -> list[str]:
    """Return the weaknesses of the map, a sentence each."""
    cells = found.map.cells
    known = {one.cell.folder for one in found.confirmed}
    missing = [cell.folder.name for cell in cells if cell.folder not in known]
    lines = []
    if missing:
        lines.append(f"Not confirmed yet: {words.listed(missing)}.")
    if known:
        lines.append(
            f"Up to {words.many(2 * len(known), 'comparison')}, each with its own 95% interval: some of them "
            "are likely to be wrong."
        )
    seen: dict[str, list[str]] = {}
    for one in found.cells:
        for weakness in one.found.integrity.weaknesses:
            seen.setdefault(weakness, []).append(one.cell.folder.name)
    for weakness, where in seen.items():
        which = "every cell" if len(where) == len(found.cells) else words.listed(where)
        lines.append(f"{which}: {weakness}")
    return lines


def _cost(found: MapRecords, gallery: Gallery) -> Section:
    trials = [trial.record for one in found.cells for trial in one.found.records.trials]
    charged, executed = (sum(getattr(one, name) for one in trials) for name in ("charged", "executed"))
    reused = f" ({1 - executed / charged:.0%} reused from shared prefixes)" if charged else ""
    hours = sum(one.seconds for one in trials) / 3600
    text = (
        f"{words.many(len(trials), 'trial')}: {words.compute(charged)} charged, {words.compute(executed)} "
        f"executed{reused}, {hours:.1f} hours of training on one worker."
    )
    return Section("What it cost", [Paragraph(text)])


def _files(found: MapRecords, gallery: Gallery) -> Section:
    listed = [
        "cells.csv: a row for each cell",
        "runs.parquet: a row for each run of each cell, with all of its numbers",
        "summary.json: the map, and the summary of each cell, for programs",
        "figures: each figure as SVG and PNG",
    ]
    return Section("Files", [Bullets(listed)])


MAP_SECTIONS: tuple[Callable[[MapRecords, Gallery], Section], ...] = (_answer, _weak, _cells, _cost, _files)
