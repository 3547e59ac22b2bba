"""Compose the report of a map from its sections."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import astuple
from statistics import fmean

from nasgrow.report import words
from nasgrow.report.budgets import EqualLoss, share
from nasgrow.report.figures import map as figures
from nasgrow.report.integrity import of_saving
from nasgrow.report.map.fit import Fit, FitError, Measured, agrees, fit, left_out, unfitted
from nasgrow.report.map.results import CellResult, MapRecords
from nasgrow.report.map.rows import interpolation_errors
from nasgrow.report.page import Bullets, Page, PageTable, Paragraph, Section, Tile, Tiles, Tone
from nasgrow.report.sections.common import Gallery, aside, made
from nasgrow.report.statistics import Estimate

CELL_COLUMNS = [
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
"""The columns of the table of cells."""


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


def _outcomes(cells: list[CellResult]) -> list[tuple[str, str]]:
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
            "marks cells in which growth is ahead at the 95% level. A square is empty if the rival has "
            "no result for as many seconds, or if step times were not measured.",
            nothing,
        )
    )
    return section


def _tiles(found: MapRecords) -> list[Tile]:
    cells = found.confirmed
    savings = [
        (share(times), one, equal) for one in cells if (equal := _saved(one)) and (times := _times(equal))
    ]
    tiles = []
    if savings:
        most, one, equal = max(savings, key=lambda saving: saving[0])
        more = "> " if equal.times is None else ""
        detail = f"{one.name}{words.saved_interval(equal)}"
        tiles.append(Tile(f"{more}{most:.0%}", "the largest saving of compute at equal loss", detail))
    apart = [(one.fixed.difference, one) for one in cells if one.fixed]
    if apart:
        least, one = min(apart, key=lambda pair: pair[0].value)
        detail = f"{one.name}, 95% interval {words.interval(least)}"
        label = "test loss minus that of the best fixed shape, where growth does best"
        tiles.append(Tile(words.signed(least.value), label, detail))
    return tiles


def _saved(one: CellResult) -> EqualLoss | None:
    return None if one.final is None else one.final.saved


def _times(equal: EqualLoss) -> float | None:
    """Return the budget of equal loss, or the largest one trained as its lower bound.

    None if it is below the smallest one trained.
    """
    return equal.rungs[-1].times if equal.above else equal.times


def _boundary(found: MapRecords) -> list[str]:
    """Return a sentence for each final shape: the budgets at which growth pays, and at which it loses."""
    lines = []
    for row, cells in enumerate(found.map.grid):
        known = {
            cell.tokens_per_parameter: one.saves
            for column, cell in enumerate(cells)
            if (one := found.at(row, column))
        }
        if not known:
            continue
        won, lost = ([at for at, saves in known.items() if saves == which] for which in ("won", "lost"))
        but = f" It loses at {_numbers(lost)}." if lost else ""
        lines.append(
            f"{figures.row_name(found, row)}: against the same final shape, growth pays at "
            f"{_numbers(won) if won else 'none'} tokens per parameter (confirmed: {_numbers([*known])}).{but}"
        )
    return lines


def _numbers(values: list[float]) -> str:
    return words.listed([f"{value:g}" for value in sorted(values)])


def _cells(found: MapRecords, gallery: Gallery) -> Section:
    rows = []
    for one in found.cells:
        if one.confirmed and one.diverged:
            rows.append([one.name, one.split, "diverged", *[""] * (len(CELL_COLUMNS) - 3)])
            continue
        if one.schedule is None or one.final is None or one.fixed is None:
            continue
        seconds = one.final.seconds
        rows.append(
            [
                one.name,
                one.split,
                words.loss(one.loss),
                words.loss(one.final.loss),
                words.loss(one.fixed.loss),
                words.signed(one.fixed.difference.value),
                words.interval(one.fixed.difference) if one.confirmed else "",
                "" if seconds is None else f"{seconds:.2f}",
                one.schedule,
                one.fixed.shape,
            ]
        )
    text = frozenset({"cell", "split", "95% interval", "schedule", "best fixed shape"})
    section = Section("Every cell")
    section.blocks.append(PageTable(CELL_COLUMNS, rows, text) if rows else aside("No cell has a result yet."))
    return section


def _weak(found: MapRecords, gallery: Gallery) -> Section:
    return Section("What weakens this", [Bullets(weaknesses(found))])


def weaknesses(found: MapRecords) -> list[str]:
    """Return the weaknesses of the map, a sentence each.

    If the sentences of several cells differ only in their numbers, one of them is given as an example: that
    with the largest last number.
    """
    known = {one.name for one in found.confirmed}
    missing = [cell.name for cell in found.map.cells if cell.name not in known]
    lines = []
    if missing:
        lines.append(f"Not confirmed yet: {words.listed(missing)}.")
    if known:
        lines.append(
            f"Up to {words.many(2 * len(known), 'comparison')}, each with its own 95% interval: one in 20 "
            "misses the true value."
        )
    if len({text for one in found.cells for text in one.texts}) > 1:
        lines.append("Not every cell was trained on the same text.")
    lines += _of_interpolation(found)
    alike: dict[str, list[tuple[str, str]]] = {}
    for one in found.cells:
        for weakness in (*one.weaknesses, *_of_savings(one)):
            alike.setdefault(re.sub(r"[\d.,]*\d", "", weakness), []).append((one.name, weakness))
    for same in alike.values():
        where, sentences = zip(*same, strict=True)
        which = "every cell" if set(where) == {one.name for one in found.cells} else words.listed(where)
        name, sentence = max(same, key=lambda one: _last_number(one[1]))
        example = f", for example {name}" if len(set(sentences)) > 1 else ""
        lines.append(f"{which}{example}: {sentence}")
    return lines


def _of_interpolation(found: MapRecords) -> list[str]:
    """Say how far off interpolated losses of the final shapes are, if a row has three budgets."""
    errors = [*interpolation_errors(found.map, found.cells)]
    if not errors:
        return []
    off = [error for error, _ in errors]
    return [
        "Savings are read off losses that are interpolated between two budgets of a row. Where a budget lies "
        f"between two others, interpolating it from them gives {words.signed(fmean(off))} on average "
        f"({words.signed(min(off))} to {words.signed(max(off))}) in place of the measured loss: if this is "
        "positive, savings look larger than they are. But those two budgets lie further apart, by a "
        f"factor of {fmean(factor for _, factor in errors):.2g} on average."
    ]


def _of_savings(one: CellResult) -> Iterator[str]:
    """Warn if what growth saves in a confirmed cell is not known, or known as a bound only."""
    if not one.confirmed or one.final is None or one.fixed is None:
        return
    yield from of_saving("the final shape from scratch", one.final.saved, "compute")
    if one.fixed.shape != one.final.shape:
        yield from of_saving("the best fixed shape", one.fixed.saved, "compute")


def _last_number(sentence: str) -> float:
    numbers = re.findall(r"\d[\d,]*(?:\.\d+)?", sentence)
    return float(numbers[-1].replace(",", "")) if numbers else 0.0


def _fit(found: MapRecords, gallery: Gallery) -> Section:
    section = Section("What the map predicts")
    for reason, names in unfitted(found).items():
        section.blocks.append(aside(f"The fit leaves out {words.listed(names)}: {reason}."))
    try:
        fitted = fit(found)
    except FitError as error:
        section.blocks.append(aside(f"No prediction: {error}."))
        return section
    section.blocks.append(Paragraph(fit_in_words(fitted)))
    tested = left_out(fitted)
    if tested:
        section.blocks.append(Paragraph(_test_in_words(tested)))
    return section


def _test_in_words(tested: list[tuple[Measured, Estimate]]) -> str:
    """Say how well each cell is predicted from all the others."""
    inside = sum(agrees(cell, predicted) for cell, predicted in tested)
    errors = [abs(cell.log_times - one.value) for cell, one in tested if cell.bound == "exact"]
    bounds = len(tested) - len(errors)
    text = (
        f"Each cell was predicted from those of all other final shapes: {inside} of "
        f"{words.many(len(tested), 'cell')} agree with the 95% interval of their prediction."
    )
    if errors:
        text += f" The mean error is a factor of {math.exp(fmean(errors)):.2g}."
    if bounds:
        text += (
            f" In {words.many(bounds, 'cell')} only a bound is known. It disagrees if it excludes the whole "
            "interval."
        )
    return text


def fit_in_words(fitted: Fit) -> str:
    """Return the formula of a fit in a sentence."""
    powers = [
        f"({name.removeprefix('log ')})^{words.signed(value)}"
        for name, value in fitted.predictors.items()
        if name != "1"
    ]
    factors = " x ".join([f"{math.exp(fitted.predictors['1']):.3g}", *powers])
    return (
        f"Fitted to {words.many(len(fitted.cells), 'confirmed cell')}: to reach the loss of the best "
        f"schedule, the final shape needs {factors} times the compute. The residuals of the logarithm of "
        f"this multiple have a standard deviation of {fitted.deviation:.2g}."
    )


def _cost(found: MapRecords, gallery: Gallery) -> Section:
    trials, charged, executed, seconds = (
        (sum(values) for values in zip(*(astuple(one.spent) for one in found.cells), strict=True))
        if found.cells
        else (0, 0, 0, 0)
    )
    reused = f" ({max(0.0, 1 - executed / charged):.0%} reused from shared prefixes)" if charged else ""
    text = (
        f"{words.many(trials, 'trial')}: {words.compute(charged)} charged, {words.compute(executed)} "
        f"executed{reused}, {seconds / 3600:.1f} hours of training, added up over workers."
    )
    return Section("What it cost", [Paragraph(text)])


def _files(found: MapRecords, gallery: Gallery) -> Section:
    listed = [
        "cells.csv: a row for each cell",
        "runs.parquet: a row for each run of each cell, with all of its numbers",
        "summary.json: the results of each cell, for programs, and for nasgrow map to go on from",
        "figures: each figure as SVG and PNG",
    ]
    return Section("Files", [Bullets(listed)])


MAP_SECTIONS: tuple[Callable[[MapRecords, Gallery], Section], ...] = (
    _answer,
    _weak,
    _fit,
    _cells,
    _cost,
    _files,
)
