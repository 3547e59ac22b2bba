"""``nasgrow transfer``: train a schedule at another final shape or budget, and that shape from scratch."""

from __future__ import annotations

from pathlib import Path

from nasgrow.cli import confirm, plan, report, search
from nasgrow.cli.files import load_run
from nasgrow.data import check_text
from nasgrow.experiments.search import Workplace
from nasgrow.experiments.transfer import Source, Target, transfer, write_transfer
from nasgrow.report import words
from nasgrow.report.schedule_origin import origin
from nasgrow.report.write import check_place
from nasgrow.schedule import Schedule, in_lines, schedule_to
from nasgrow.spaces.training import PEAK
from nasgrow.strict import with_prefix
from nasgrow.study.config import StudyConfig
from nasgrow.study.study import ResolvedStudy
from nasgrow.training.run import Run


def run(
    file: Path,
    target: Target,
    *,
    out: Path | None,
    to: Path | None,
    seeds: int,
    workers: int | None,
    plan_only: bool,
    quiet: bool = False,
) -> int:
    """Transfer the schedule of ``file``: write, search, confirm and report a study that trains it.

    Args:
        file: The file of a schedule or run, such as the best schedule in the report of a study.
        target: The target.
        out: The study file to write; by default ``runs/NAME/transfer.yaml``.
        to: The folder of the report; by default ``reports/NAME``.
        seeds: How many fresh seeds confirm the best schedule and the best fixed shapes.
        workers: The number of trials trained at once; by default as many as fit.
        plan_only: Whether to print schedule and cost only.
        quiet: Whether to print the result only.

    Returns:
        The exit code: that of the first of these steps that does not return 0, else 0.
    """
    config, schedule = aimed(file, target)
    study = ResolvedStudy.resolve(config, str(file))
    with_prefix(str(file), lambda: check_text(config.data.text))
    described = study.run(schedule, {}, config.seeds[0])
    planned = Run.resolve(described, vocab=study.variant.vocab, fingerprint="")
    if not quiet or plan_only:
        _show(study, config, schedule, planned, seeds, timed=plan_only)
    if plan_only:
        return 0
    check_place(to or Path("reports") / config.name)
    path = write_transfer(out, config)
    place = Workplace(workers=workers)
    ended = search.run(path, place, None, False, quiet)
    ended = ended or confirm.run(path, 1, None, seeds, place, False, quiet)
    return ended or report.run(path, to, quiet)


def _show(
    study: ResolvedStudy, config: StudyConfig, schedule: Schedule, planned: Run, seeds: int, *, timed: bool
) -> None:
    """Print the schedule of a transfer, the cost of one run of it, and what will be trained.

    The last part names the learning rates and the number of fresh seeds, not the number of trials.

    Args:
        study: The study of the transfer.
        config: Its settings.
        schedule: The scaled schedule.
        planned: A run of that schedule, whose cost is printed.
        seeds: How many fresh seeds the confirmation has; the search does not use them.
        timed: Whether to measure how long the stages of the run take.
    """
    for line in in_lines(schedule):
        print(line)
    plan.show(planned, timed=timed)
    rates = [f"{rate:.3g}" for rate in study.tuning.declared[PEAK]]
    print(
        f"learning rates {words.listed(rates)} for its final shape from scratch; then this schedule, and "
        f"fixed shapes with equal compute and tuning; then {seeds} fresh seeds of the best of each"
    )
    print(config.note)


def aimed(file: Path, target: Target) -> tuple[StudyConfig, Schedule]:
    """Return the study that transfers the schedule of ``file``, and that schedule as scaled.

    Raises:
        UserError: The file or the target is invalid, or there is no growth to transfer.
    """
    config = load_run(file)
    found = origin(file, schedule_to(config.schedule))
    source = Source(file.name, file.stem)
    if found is not None:
        source = Source(found.study, found.study, f"There: {found.gain}.", found.final_rate)
    return transfer(config, target, source, str(file))
