"""``nasgrow family``: train models of several sizes that share a prefix, and each size from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from nasgrow.cli.console import plain_table, print_sentences, study_console
from nasgrow.cli.files import load_run
from nasgrow.cli.live_view import STOPPED
from nasgrow.cli.signals import asked_to_stop
from nasgrow.cli.train import watching
from nasgrow.data import prepare
from nasgrow.experiments.family import Family, Part, claim_family, train_family
from nasgrow.experiments.sequential_runs import RunObserver
from nasgrow.flops import parameter_count
from nasgrow.report.family.read import read_family
from nasgrow.report.family.sections import headline
from nasgrow.report.family.write import check_place, write_family
from nasgrow.report.schedule_origin import origin
from nasgrow.schedule import schedule_to
from nasgrow.strict import with_prefix
from nasgrow.study.folders import named_folder
from nasgrow.training.loop import InterruptedRunError


def run(
    file: Path,
    *,
    flops: float | None,
    rates: Sequence[float] | None,
    seeds: int,
    name: str | None,
    to: Path | None,
    plan_only: bool,
    quiet: bool = False,
) -> int:
    """Train the family of ``file`` and write its report.

    Args:
        file: The file of a schedule or run, which is that of the largest member.
        flops: The budget of every model; by default the file's.
        rates: Learning rates to try; by default half, once and twice the file's.
        seeds: How many fresh seeds.
        name: The family's name. By default it is ``FILE-family``, or ``STUDY-family`` if the file
            is the best schedule in the report of a study.
        to: The folder of the report; by default ``reports/NAME``.
        plan_only: Whether to print sizes and cost only.
        quiet: Whether to print the result only.

    Returns:
        The exit code: 0, or ``STOPPED`` if the user stopped it.
    """
    config = load_run(file).with_options(flops=flops)
    family = with_prefix(str(file), lambda: Family.of_run(config, rates, seeds))
    name = name or f"{_origin(file, family)}-family"
    folder, to = named_folder(name), to or Path("reports") / name
    console = study_console()
    if not quiet or plan_only:
        _show(console, family)
    if plan_only:
        return 0
    check_place(to)
    claim_family(folder, family.config)

    def say(line: str) -> None:
        if not quiet:
            console.print(line, soft_wrap=True)

    corpus = prepare(family.config.data, report=say)

    try:
        with asked_to_stop() as stop:
            observer = RunObserver(lambda: watching(console, not quiet, False), say, console.print, stop)
            train_family(family, folder, corpus, observer)
    except InterruptedRunError:
        console.print("stopped and saved; the same command resumes", soft_wrap=True)
        return STOPPED
    found = read_family(name, family, folder, corpus.fingerprint)
    write_family(found, to)
    print_sentences(console, [headline(found)])
    print(to / "index.html")
    return 0


def _origin(file: Path, family: Family) -> str:
    found = origin(file, schedule_to(family.schedules[-1]))
    return file.stem if found is None else found.study


def _show(console: Console, family: Family) -> None:
    """Print the sizes of a family and their cost."""
    table = plain_table(("size", "parameters", "from", "own FLOPs", "from scratch"), last="shape")
    together = scratch = 0
    for index, schedule in enumerate(family.schedules):
        own, whole = family.own_flops(index), family.charged(Part(index, False))
        together, scratch = together + own, scratch + whole
        begins = schedule.events[-1].at if schedule.events else 0.0
        table.add_row(
            str(index + 1),
            f"{parameter_count(schedule.final, family.variant):,}",
            f"{begins:.1%}",
            f"{own:.3g}",
            f"{whole:.3g}",
            str(schedule.final),
        )
    console.print(table)
    config = family.config
    rates = ", ".join(f"{rate:.3g}" for rate in config.learning_rates)
    console.print(
        f"one model of each size: {together:.3g} FLOPs with a shared prefix, {scratch:.3g} from scratch\n"
        f"to be trained: learning rates {rates} for all, then {config.seeds} fresh seeds of the best of each",
        soft_wrap=True,
    )
