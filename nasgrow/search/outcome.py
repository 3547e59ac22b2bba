"""Training the run of a trial: found finished, taken up, or trained from its start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from nasgrow.config import RunConfig
from nasgrow.data import Corpus
from nasgrow.export import trained
from nasgrow.schedule import Schedule
from nasgrow.training.folder import open_folder, read_run
from nasgrow.training.loop import Progress, Stopped, train, windows_of
from nasgrow.training.records import Result, read_metrics, write_json
from nasgrow.training.run import Run
from nasgrow.training.step import evaluate
from nasgrow.training.trunks import Trunks, following

TEST = "test.json"
"""The file in a run's folder that holds its loss on the test split."""

ACCOUNTS = "accounts.json"
"""The file in a run's folder that says which trial has accounted for which part of its executed FLOPs."""

RUNS = "runs"
"""The folder of a study's runs, each named by its identity: equal points share one."""


@dataclass(frozen=True)
class Setting:
    """Where and how the runs of a study are trained."""

    folder: Path
    corpus: Corpus
    device: torch.device
    watch: Callable[[Progress], None]
    warn: Callable[[str], None]
    stop: Callable[[], bool]
    trunks: Trunks | None = None


def resolve(config: RunConfig, setting: Setting, schedule: Schedule | None = None) -> tuple[Run, Path]:
    """The run of a configuration and its folder; its schedule may be at hand."""
    vocab, fingerprint = setting.corpus.vocab, setting.corpus.fingerprint
    run = Run.resolve(config, vocab=vocab, fingerprint=fingerprint, schedule=schedule)
    return run, setting.folder / RUNS / run.identity


class Asks(Protocol):
    """Who is told of a run's evaluations."""

    def report(self, fraction: float, loss: float) -> None:
        """Take down an evaluation at an aligned fraction of the budget."""

    def judge(self, fraction: float, loss: float) -> None:
        """Take it down, and raise :class:`~nasgrow.training.loop.Stopped` if the run is to be given up."""


def finish(run: Run, folder: Path, setting: Setting, asks: Asks, who: Claimant) -> tuple[Result, int]:
    """The result of a run: at once if it ended before, else after training what is left of it.

    Returns:
        The result, its status ``pruned`` if it was given up; and the FLOPs executed that no other trial has
        accounted for.
    """
    tokenizer, device = setting.corpus.tokenizer, setting.device
    with open_folder(folder, run, tokenizer, device, wait=lambda: not setting.stop()) as before:
        try:
            for fraction, loss in evaluations(folder):
                (asks.judge if before is None else asks.report)(fraction, loss)
            result = before or _train(run, folder, setting, asks)
        except Stopped:
            result = _so_far(folder)
        return result, _account(folder, result.executed, who)


def _train(run: Run, folder: Path, setting: Setting, asks: Asks) -> Result:
    with following(setting.trunks, run, folder, setting.device, setting.warn, setting.stop) as trunk:
        return train(
            run,
            setting.corpus,
            folder,
            device=setting.device,
            watch=setting.watch,
            warn=setting.warn,
            stop=setting.stop,
            evaluated=asks.judge,
            trunk=trunk,
        )


@dataclass(frozen=True)
class Claimant:
    """A trial that accounts for FLOPs: its name, and those it had before it died or was given up."""

    name: str
    before: tuple[str, ...] = ()


def _account(folder: Path, executed: int, who: Claimant) -> int:
    """The FLOPs of a run that fall to a trial: what no other one took. The run's folder must be held."""
    path = folder / ACCOUNTS
    taken: dict[str, int] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    others = {name: flops for name, flops in taken.items() if name not in (who.name, *who.before)}
    own = max(0, executed - sum(others.values()))
    write_json(path, {**others, who.name: own})
    return own


def _so_far(folder: Path) -> Result:
    """What a run that was given up has come to."""
    last = list(read_metrics(folder))[-1]  # it was given up at an evaluation, which is a record
    return Result(
        status="pruned",
        validation=None,
        steps=last["step"],
        tokens=last["tokens"],
        charged=last["charged"],
        executed=last["executed"],
        seconds=last["seconds"],
        parameters=0,
    )


def test_loss(folder: Path, setting: Setting) -> float:
    """The loss of a run that ended on the test split, which nothing else ever looks at."""
    path = folder / TEST
    if path.exists():
        return float(json.loads(path.read_text(encoding="utf-8"))["test"])
    state = trained(folder, setting.device)
    config = read_run(folder).config.training
    windows = windows_of(setting.corpus.test, config.final_tokens, config.context)
    loss = evaluate(state.model, windows, config.micro_tokens or config.batch_tokens)
    write_json(path, {"test": loss, "tokens": windows[:, 1:].numel()})
    return loss


def evaluations(folder: Path) -> Iterator[tuple[float, float]]:
    """The evaluations of a run so far: fraction of the budget, aligned between runs, and loss."""
    for record in read_metrics(folder):
        if record["kind"] == "evaluation" and record["validation"] is not None:
            yield record["aligned"], record["validation"]
