"""``nasgrow transfer``: a schedule at a larger final shape or budget, beside that shape from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nasgrow.cli import confirm, plan, report, search
from nasgrow.cli.files import load_run
from nasgrow.config import Budget, RunConfig
from nasgrow.data import check_text, vocabulary
from nasgrow.errors import UserError
from nasgrow.experiments.retarget import retarget
from nasgrow.experiments.search import Place
from nasgrow.experiments.transfer import (
    final_shape,
    rates_around,
    same_ratio,
    scaled,
    target_name,
    transferred,
)
from nasgrow.report import words
from nasgrow.report.origin import origin
from nasgrow.report.write import check_place
from nasgrow.schedule import Schedule, in_lines, schedule_to
from nasgrow.shape import Shape, Variant
from nasgrow.spaces.training import PEAK
from nasgrow.strict import parse, with_prefix
from nasgrow.study.config import STUDY, StudyConfig, differences, dump_study, load_study
from nasgrow.study.folders import check_folder
from nasgrow.study.study import Study
from nasgrow.training.files import write_text
from nasgrow.training.run import Run

TRANSFER = "transfer.yaml"
"""The study file, in the study's folder unless another place is given."""


@dataclass(frozen=True)
class Target:
    """Where a schedule is to go: what is None stays, or follows from the rest."""

    final: str | None
    scale: float | None
    flops: float | None
    tokens_per_parameter: float | None
    learning_rates: Sequence[float]
    name: str | None


def run(
    file: Path,
    target: Target,
    *,
    out: Path | None,
    to: Path | None,
    seeds: int,
    workers: int | None,
    plan_only: bool,
) -> int:
    """Transfer the schedule of ``file``; return the exit code."""
    config, schedule = aimed(file, target)
    study = Study.resolve(config, str(file))
    with_prefix(str(file), lambda: check_text(config.data.text))
    for line in in_lines(schedule):
        print(line)
    described = study.run(schedule, {}, config.seeds[0])
    planned = Run.resolve(described, vocab=study.variant.vocab, fingerprint="")
    plan.show(planned, timed=plan_only)
    rates = [f"{rate:.3g}" for rate in study.tuning.declared[PEAK]]
    print(
        f"learning rates {words.listed(rates)} for its final shape from scratch; then this schedule, and "
        f"fixed shapes with as much compute and tuned as well; then {seeds} fresh seeds of the best of each"
    )
    print(config.note)
    if plan_only:
        return 0
    check_place(to or Path("reports") / config.name)
    path = _write(out, config)
    place = Place(workers=workers)
    ended = search.run(path, place, None, False) or confirm.run(path, 1, None, seeds, place, False)
    return ended or report.run(path, to)


def aimed(file: Path, target: Target) -> tuple[StudyConfig, Schedule]:
    """The study of a transfer, and the schedule that it trains."""
    config = load_run(file)
    old, training = config.schedule, config.training
    if config.start is not None:
        raise UserError(f"{file}: start: it starts from a checkpoint, which has no other size to transfer to")
    variant = config.variant.resolve(vocab=vocabulary(config.data.tokens), context=training.context)
    final, budget = _final(target, old.final), _budget(target, config, variant)
    if final == old.final and target.flops is None and target.tokens_per_parameter is None:
        raise UserError("it has that final shape already: give another one, or another budget")
    if not old.events:
        raise UserError(f"{file}: the schedule has no event: there is no growth to transfer")
    with_prefix("--final", lambda: variant.check(final))
    moved = retarget(old, final, variant)
    if not moved.events:
        raise UserError(f"{file}: nothing of its growth is left at {final}: all sizes round to the same")
    found = origin(file, schedule_to(old))
    flops = budget.resolve(final, variant, training)
    comes = (
        "No report lies beside that file to say what it gained there."
        if found is None
        else f"There: {found.gain}."
    )
    name = target.name or target_name(found.study if found else file.stem, final, flops)
    note = f"Transferred from {found.study if found else file.name} (final shape {old.final}). {comes}"
    around = rates_around(training.learning_rate.peak, found.final_rate if found else None)
    rates = sorted(set(target.learning_rates)) or around
    return transferred(config, moved, budget, rates, name=name, note=note), moved


def _final(target: Target, old: Shape) -> Shape:
    if target.final is not None and target.scale is not None:
        raise UserError("give --final or --scale, not both")
    if target.scale is not None:
        return scaled(old, target.scale)
    return old if target.final is None else final_shape(target.final, old)


def _budget(target: Target, config: RunConfig, variant: Variant) -> Budget:
    """As asked for; else as many tokens for each parameter as before."""
    given = {"flops": target.flops, "tokens_per_parameter": target.tokens_per_parameter}
    given = {name: number for name, number in given.items() if number is not None}
    return parse(Budget, given, "--budget, --tokens-per-parameter") if given else same_ratio(config, variant)


def _write(out: Path | None, config: StudyConfig) -> Path:
    """Write the study file, unless another study's is there, or in its folder something else; its path."""
    folder = Path("runs") / config.name
    check_folder(folder, STUDY, "choose another --name", [TRANSFER])
    path = out or folder / TRANSFER
    for known in (path, folder / STUDY):
        if known.exists() and (changed := differences(load_study(known), config)):
            raise UserError(
                f"{known}: is another study ({'; '.join(changed)}); choose another --name or --out"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(
        path,
        f"# Written by nasgrow transfer: a study file like any other.\n{dump_study(config)}",
    )
    return path
