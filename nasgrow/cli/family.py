"""``nasgrow family``: models of several sizes from one trunk, beside each size from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from nasgrow.cli.console import study_console
from nasgrow.cli.files import load_run
from nasgrow.cli.launch import STOPPED
from nasgrow.cli.signals import asked_to_stop
from nasgrow.cli.train import watching
from nasgrow.data import Corpus, check_text, prepare, vocabulary
from nasgrow.errors import UserError
from nasgrow.experiments.family import (
    Family,
    FamilyConfig,
    Part,
    choose,
    dump_family,
    load_family,
    same_family,
)
from nasgrow.experiments.transfer import rates_around
from nasgrow.flops import parameter_count
from nasgrow.report.family.read import read_family
from nasgrow.report.family.sections import headline
from nasgrow.report.family.write import check_place, write_family
from nasgrow.report.origin import origin
from nasgrow.schedule import schedule_to
from nasgrow.strict import parse, with_prefix
from nasgrow.study.config import TrunksConfig
from nasgrow.study.costs import open_cache
from nasgrow.study.folders import FAMILY, check_folder, named_folder
from nasgrow.study.trials import RUNS
from nasgrow.training.device import pick_device
from nasgrow.training.files import write_text
from nasgrow.training.loop import Interrupted
from nasgrow.training.runner import Runner


def run(
    file: Path,
    *,
    flops: float | None,
    rates: Sequence[float] | None,
    seeds: int,
    name: str | None,
    to: Path | None,
    plan_only: bool,
) -> int:
    """Train the family of ``file`` and write its report; return the exit code."""
    family = _understood(file, flops, rates, seeds)
    name = name or f"{_origin(file, family)}-family"
    folder, to = named_folder(name), to or Path("reports") / name
    console = study_console()
    _show(console, family)
    if plan_only:
        return 0
    check_place(to)
    _claim(folder, family.config)
    corpus = prepare(family.config.data, report=lambda line: console.print(line, style="dim"))
    try:
        _train(console, family, folder, corpus)
    except Interrupted:
        console.print("stopped and saved; the same command goes on", soft_wrap=True)
        return STOPPED
    found = read_family(name, family, folder, corpus.fingerprint)
    write_family(found, to)
    print(headline(found))
    print(to / "index.html")
    return 0


def _understood(file: Path, flops: float | None, rates: Sequence[float] | None, seeds: int) -> Family:
    config = load_run(file).with_options(flops=flops)
    around = rates_around(config.training.learning_rate.peak)
    data = dict(config) | {"learning_rates": sorted(set(rates or around)), "seeds": seeds}
    vocab = vocabulary(config.data.tokens)

    def resolved() -> Family:
        check_text(config.data.text)
        family = Family.resolve(parse(FamilyConfig, data, str(file)), vocab)
        for part in family.parts:
            family.charged(part)  # the budget must cover every stage
        return family

    return with_prefix(str(file), resolved)


def _origin(file: Path, family: Family) -> str:
    found = origin(file, schedule_to(family.schedules[-1]))
    return file.stem if found is None else found.study


def _claim(folder: Path, config: FamilyConfig) -> None:
    """Write what the family is, unless the folder is another's."""
    check_folder(folder, FAMILY, "choose another --name")
    if (folder / FAMILY).exists() and not same_family(load_family(folder), config):
        raise UserError(f"{folder}: holds another family; choose another --name")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FAMILY, dump_family(config))


def _train(console: Console, family: Family, folder: Path, corpus: Corpus) -> None:
    """Train each part at each learning rate, then the best of each with fresh seeds; what ended is kept.

    Raises:
        Interrupted: This process was asked to stop; the state is saved.
    """
    device = pick_device()
    times = [event.at for event in family.schedules[-1].events]
    prefixes = open_cache(folder, TrunksConfig(), times)
    total = len(family.parts) * (len(family.config.learning_rates) + family.config.seeds)
    number = 0

    def train(part: Part, rate: float, seed: int, *, tested: bool) -> float | None:
        nonlocal number
        number += 1
        if stop():
            raise Interrupted
        described = family.run(part, rate, seed, corpus.fingerprint)
        with watching(console, True, False) as watch:
            runner = Runner(folder / RUNS, corpus, device, watch, console.print, stop, prefixes)
            loss = runner.train(described, lambda at, loss: None).validation
            told = "diverged" if loss is None else f"validation loss {loss:.4f}"
            if tested and loss is not None:
                test = runner.test_loss(described)
                told += ", test loss not finite" if test is None else f", test loss {test:.4f}"
        console.print(f"{number} of {total}: {part}, rate {rate:.3g}, seed {seed}: {told}", soft_wrap=True)
        return loss

    with asked_to_stop() as stop:
        seed = family.config.seed
        losses = {(part, rate): train(part, rate, seed, tested=False) for part, rate in family.tuning()}
        chosen = choose(family, losses)
        for fresh in family.fresh_seeds:
            for part, rate in chosen.items():
                train(part, rate, fresh, tested=True)


def _show(console: Console, family: Family) -> None:
    """The sizes of a family, and what they cost."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("size", "parameters", "from", "own FLOPs", "from scratch"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("shape")
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
        f"one model of each size: {together:.3g} FLOPs with a shared trunk, {scratch:.3g} from scratch\n"
        f"trained here: learning rates {rates} for all, then {config.seeds} fresh seeds of the best of each",
        soft_wrap=True,
    )
