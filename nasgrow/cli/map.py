"""``nasgrow map``: run one study at several final shapes and budgets, to see where growth pays."""

from __future__ import annotations

import math
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from nasgrow.cli.console import print_sentences, study_console
from nasgrow.cli.live_view import STOPPED, observing
from nasgrow.data import check_text
from nasgrow.errors import UserError
from nasgrow.experiments.map import GrowthMap, load_map, train_cell
from nasgrow.experiments.search import Workplace
from nasgrow.flops import parameter_count
from nasgrow.report import words
from nasgrow.report.map.fit import FitError, Place, fit, interval
from nasgrow.report.map.read import at_hand, read_map, read_published
from nasgrow.report.map.sections import fit_in_words
from nasgrow.report.map.write import check_place, write_map
from nasgrow.strict import with_prefix

MOST_TOKENS_PREDICTED = 1e6
"""The most tokens per parameter that ``--predict`` takes."""


def run(
    file: Path, place: Workplace, *, to: Path | None, plan_only: bool, report_only: bool, quiet: bool
) -> int:
    """Search and confirm the cells of a map, the cheapest first, and write its report.

    A cell that the report holds as confirmed is skipped, unless its study is at hand: that is
    resumed.

    Args:
        file: The map file.
        place: Where trials are trained.
        to: The folder of the report; by default ``reports/NAME``.
        plan_only: Whether to print the cells and their compute only.
        report_only: Whether to write the report only.
        quiet: Whether to print the result only.

    Returns:
        The exit code: 0, or ``STOPPED`` if the user stopped it.
    """
    found = load_map(file)
    to = to or Path("reports") / found.name
    console = study_console()
    if plan_only:
        _show(console, found)
        return 0
    check_place(to)
    published = read_published(found, to)
    if not report_only:
        with_prefix(str(file), lambda: check_text(found.cells[0].study.config.data.text))
    for number, cell in enumerate(() if report_only else found.cells, 1):
        known = f"confirmed in {to}" if cell.name in published and not at_hand(cell.folder) else ""
        if not quiet:
            console.print(f"cell {number} of {len(found.cells)}: {known or cell.folder}", soft_wrap=True)
        if known:
            continue
        with observing(console, as_json=False, quiet=quiet) as observer:
            if not train_cell(cell, found.config.confirm, place, observer):
                console.print("stopped and saved; the same command resumes", soft_wrap=True)
                return STOPPED
    print_sentences(console, [write_map(found, to)])
    print(to / "index.html")
    return 0


def predict(file: Path, to: Path | None, hidden: int, layers: int, tokens: float) -> int:
    """Print what the fit to a map's confirmed cells predicts for another cell; return 0.

    Args:
        file: The map file.
        to: The folder of the report, which may hold cells too; by default ``reports/NAME``.
        hidden: The hidden size of the final shape.
        layers: Its number of layers.
        tokens: The budget in tokens per parameter.

    Raises:
        UserError: ``tokens`` is out of range, or the confirmed cells do not allow a prediction.
    """
    if not 0 < tokens <= MOST_TOKENS_PREDICTED:
        raise UserError(
            "--predict: tokens per parameter must be above 0 and at most "
            f"{MOST_TOKENS_PREDICTED:,.0f}, not {tokens:g}"
        )
    found = load_map(file)
    place = Place(hidden, layers, tokens)
    try:
        fitted = fit(read_map(found, to or Path("reports") / found.name))
        log_times = fitted.predict(place)
    except FitError as error:
        raise UserError(f"{file}: {error}") from None
    value, low, high = (math.exp(min(700.0, end)) for end in interval(log_times))
    outside = "" if fitted.covers(place) else " (outside the map's sizes)"
    print(fit_in_words(fitted))
    print(
        f"h={hidden}, N={layers}, {tokens:g} tokens per parameter{outside}: the final shape needs "
        f"{words.multiple(value)} times the compute (95%: {words.multiple(low)} to {words.multiple(high)}), "
        f"so growth saves {words.predicted_share(value)} "
        f"({words.predicted_share(low)} to {words.predicted_share(high)})"
    )
    return 0


def _show(console: Console, found: GrowthMap) -> None:
    """Print the cells of a map, and the compute of one run of each."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("cell", "parameters", "tokens each", "compute of a run", "batch", "rate"):
        table.add_column(heading, justify="right", no_wrap=True)
    for cell in found.cells:
        training = cell.study.config.training
        table.add_row(
            cell.name,
            words.count(parameter_count(cell.shape, cell.study.variant)),
            f"{cell.tokens_per_parameter:g}",
            words.compute(cell.study.budget),
            words.count(training.batch_tokens),
            f"{training.learning_rate.peak:g}",
        )
    console.print(table)
    total = sum(cell.study.budget for cell in found.cells)
    console.print(f"one run of each: {words.compute(total)}; nasgrow plan shows the cost of a whole study")
