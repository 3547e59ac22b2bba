"""``nasgrow slope``: train by the slope rule, and write the schedule that it comes to."""

from __future__ import annotations

from pathlib import Path

import yaml
from rich.console import Console

from nasgrow.cli.launch import STOPPED
from nasgrow.cli.signals import asked_to_stop
from nasgrow.cli.train import summary, watching
from nasgrow.data import Corpus, prepare, vocabulary
from nasgrow.errors import UserError
from nasgrow.experiments.policy import Policy, Watching, dump_policy, load_policy
from nasgrow.schedule import in_lines
from nasgrow.strict import with_prefix
from nasgrow.study.config import TrunksConfig
from nasgrow.study.costs import open_cache
from nasgrow.study.folders import POLICY, check_folder, named_folder
from nasgrow.study.trials import RUNS
from nasgrow.training.device import pick_device
from nasgrow.training.files import write_text
from nasgrow.training.loop import Interrupted
from nasgrow.training.records import Result
from nasgrow.training.run import Run
from nasgrow.training.runner import Runner

SCHEDULE = "schedule.yaml"
"""The file that holds the run with the times that were found."""


def run(file: Path, flops: float | None, seed: int | None, name: str | None) -> int:
    """Train by the policy of ``file`` and write what it comes to; return the exit code."""
    policy = load_policy(file).with_options(flops=flops, seed=seed)
    vocab = vocabulary(policy.config.data.tokens)
    with_prefix(str(file), lambda: policy.resolve(vocab, ""))  # before anything starts
    folder = named_folder(name or f"{file.stem}-slope")
    _claim(folder, policy)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    corpus = prepare(policy.config.data, report=lambda line: console.print(line, style="dim"))
    try:
        trained, result = _train(console, policy, folder, corpus)
    except Interrupted:
        console.print("stopped and saved; the same command goes on")
        return STOPPED
    print(summary(folder / RUNS / trained.identity, result))
    if result.status != "finished":
        return 1
    for line in in_lines(trained.schedule):
        print(line)
    _write(folder / SCHEDULE, file, policy, trained)
    print(folder / SCHEDULE)
    return 0


def _claim(folder: Path, policy: Policy) -> None:
    """Write what is trained, unless the folder is another's."""
    check_folder(folder, POLICY, "choose another --name")
    path = folder / POLICY
    if path.exists() and load_policy(path) != policy:
        raise UserError(f"{folder}: holds another run with slopes; choose another --name")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, dump_policy(policy))


def _train(console: Console, policy: Policy, folder: Path, corpus: Corpus) -> tuple[Run, Result]:
    """Train until an event is due by its slope, then the run with the event there; the last to its end.

    Raises:
        Interrupted: This process was asked to stop; the state is saved.
    """
    device = pick_device()
    many = policy.config.training.evaluations
    prefixes = open_cache(folder, TrunksConfig(), [index / many for index in range(1, many)])
    with asked_to_stop() as stop:
        while True:
            described = policy.resolve(corpus.vocab, corpus.fingerprint)
            place = folder / RUNS / described.identity
            asks = Watching(policy, described, place)
            with watching(console, True, False) as watch:
                runner = Runner(folder / RUNS, corpus, device, watch, console.print, stop, prefixes)
                result = runner.train(described, asks.judge)
            if asks.found is None:
                return described, result
            event, at = asks.found
            console.print(f"event {event + 1} at {at:.3g} of the budget: the loss is flat enough")
            policy = policy.earlier(event, at)


def _write(path: Path, file: Path, policy: Policy, trained: Run) -> None:
    rules = [
        f"event {index + 1} at {event.at:.3g}" + ("" if slope is None else f" (slope {slope:g})")
        for index, (event, slope) in enumerate(zip(trained.schedule.events, policy.slopes, strict=True))
    ]
    head = (
        f"# Times found by nasgrow slope {file.name}: {', '.join(rules)}.\n"
        f"# It is a run like any other: nasgrow train {path.name} trains it.\n"
    )
    write_text(path, head + yaml.safe_dump(trained.document(), sort_keys=False, allow_unicode=True))
