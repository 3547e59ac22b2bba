"""Training the run of a trial: found finished, taken up, or trained from its start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from nasgrow.config import RunConfig
from nasgrow.data import Corpus
from nasgrow.export import trained
from nasgrow.training.folder import open_folder, read_run
from nasgrow.training.loop import Progress, train, windows_of
from nasgrow.training.records import Result, read_metrics, write_json
from nasgrow.training.run import Run
from nasgrow.training.step import evaluate

TEST = "test.json"
"""The file in a run's folder that holds its loss on the test split."""

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


def resolve(config: RunConfig, setting: Setting) -> tuple[Run, Path]:
    """The run of a configuration and its folder."""
    run = Run.resolve(config, vocab=setting.corpus.vocab, fingerprint=setting.corpus.fingerprint)
    return run, setting.folder / RUNS / run.identity


def finish(run: Run, folder: Path, setting: Setting, evaluated: Callable[[float, float], None]) -> Result:
    """The result of a run: at once if it ended before, else after training what is left of it."""
    corpus, device = setting.corpus, setting.device
    with open_folder(folder, run, corpus.tokenizer, device, wait=lambda: not setting.stop()) as before:
        for fraction, loss in evaluations(folder):
            evaluated(fraction, loss)
        return before or train(
            run,
            corpus,
            folder,
            device=device,
            watch=setting.watch,
            warn=setting.warn,
            stop=setting.stop,
            evaluated=evaluated,
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
