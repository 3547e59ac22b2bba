"""``nasgrow slope``: train by the slope rule, and write the schedule that it finds."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from nasgrow.cli.live_view import STOPPED
from nasgrow.cli.signals import asked_to_stop
from nasgrow.cli.train import summary, watching
from nasgrow.data import prepare, vocabulary
from nasgrow.experiments.sequential_runs import RunObserver
from nasgrow.experiments.slope_rule import claim_policy, load_policy, train_policy, write_found
from nasgrow.schedule import in_lines
from nasgrow.strict import with_prefix
from nasgrow.study.folders import named_folder
from nasgrow.study.trials import RUNS
from nasgrow.training.loop import InterruptedRunError


def run(file: Path, flops: float | None, seed: int | None, name: str | None, quiet: bool = False) -> int:
    """Train by the policy of ``file`` and write the run that it finds.

    Args:
        file: A run file or schedule file in which at least one event has a ``slope``.
        flops: A budget that replaces the policy's.
        seed: A seed that replaces the policy's.
        name: The folder in ``runs`` for all results; by default the file's name with ``-slope``.
        quiet: Whether to show no progress.

    Returns:
        The exit code: 0, 1 if training diverged, or ``STOPPED`` if the user stopped it. Only with 0
        is the run written. After a stop, the same call resumes.
    """
    policy = load_policy(file).with_options(flops=flops, seed=seed)
    vocab = vocabulary(policy.config.data.tokens)
    with_prefix(str(file), lambda: policy.resolve(vocab, ""))  # fails early if invalid
    folder = named_folder(name or f"{file.stem}-slope")
    claim_policy(folder, policy)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

    def say(line: str) -> None:
        if not quiet:
            console.print(line, style="dim")

    corpus = prepare(policy.config.data, report=say)
    try:
        with asked_to_stop() as stop:
            observer = RunObserver(lambda: watching(console, not quiet, False), say, console.print, stop)
            trained, result = train_policy(policy, folder, corpus, observer)
    except InterruptedRunError:
        console.print("stopped and saved; the same command resumes")
        return STOPPED
    print(summary(folder / RUNS / trained.identity, result))
    if result.status != "finished":
        return 1
    for line in in_lines(trained.schedule):
        print(line)
    print(write_found(folder, file.name, policy, trained))
    return 0
