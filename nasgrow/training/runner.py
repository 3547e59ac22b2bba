"""Training runs in folders of their own: a run is found finished, resumed, or trained from its start."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from nasgrow.config import RunConfig
from nasgrow.data import Corpus
from nasgrow.generate import generate
from nasgrow.model import Transformer
from nasgrow.strict import read_json
from nasgrow.training.determinism import repeats
from nasgrow.training.folder import open_folder
from nasgrow.training.loop import InterruptedRunError, Progress, StopTrainingError, train, windows_of
from nasgrow.training.prefixes import PrefixCache, following
from nasgrow.training.records import TEST, Result, read_metrics, read_run, write_json
from nasgrow.training.resume import trained
from nasgrow.training.run import Run
from nasgrow.training.step import evaluate
from nasgrow.training.step_timing import device_name

STRETCHES = 16
"""Stretches of the test text whose losses are recorded: their variance shows the chance of the text."""

PROMPT, SAMPLE = 32, 200
"""Tokens of the test split in the prompt of a tested model, and tokens that it adds to them."""

TEMPERATURE = 0.8
"""Of its choices."""


@dataclass(frozen=True)
class Runner:
    """Trains runs on one device.

    Attributes:
        folder: Holds a folder for each run, named by the run's identity: equal runs share one.
        corpus: The data.
        device: Where to train.
        watch: Called with progress.
        warn: Called with each warning.
        stop: Whether to save and stop, asked after every step.
        prefixes: The prefix cache, if runs share what they have in common.
    """

    folder: Path
    corpus: Corpus
    device: torch.device
    watch: Callable[[Progress], None]
    warn: Callable[[str], None]
    stop: Callable[[], bool]
    prefixes: PrefixCache | None = None

    def resolve(self, config: RunConfig) -> tuple[Run, Path]:
        """The run of a configuration, and its folder."""
        run = Run.resolve(config, vocab=self.corpus.vocab, fingerprint=self.corpus.fingerprint)
        return run, self.folder / run.identity

    def train(self, run: Run, evaluated: Callable[[float, float], None]) -> Result:
        """The result of a run: at once if it has ended before, else after training the rest of it.

        Args:
            run: The run.
            evaluated: Called with each evaluation of an unfinished run, those from before it was resumed
                among them: the fraction of the budget and the validation loss. It may raise
                ``StopTrainingError`` to pause the run, whose status is then ``paused``.

        Raises:
            InterruptedRunError: :attr:`stop` asked for it; the state is saved.
        """
        folder, tokenizer = self.folder / run.identity, self.corpus.tokenizer
        prefixes, notes = self._prefixes(run)
        with open_folder(folder, run, tokenizer, self.device, wait=self._wait, notes=notes) as before:
            if before is not None:
                return before
            try:
                for at, loss in evaluations(folder):
                    evaluated(at, loss)
                with following(prefixes, run, folder, self.device, self.warn, self.stop) as prefix:
                    return train(
                        run,
                        self.corpus,
                        folder,
                        device=self.device,
                        watch=self.watch,
                        warn=self.warn,
                        stop=self.stop,
                        evaluated=evaluated,
                        prefix=prefix,
                    )
            except StopTrainingError:
                return so_far(folder, "paused")

    def _prefixes(self, run: Run) -> tuple[PrefixCache | None, dict[str, Any]]:
        """The prefix cache, if runs can share on this device, and the line about it in the run's description.

        Where the same training does not give the same bits, a run goes on from its own checkpoints alone.
        """
        if self.prefixes is None or self.device.type == "cpu":
            return self.prefixes, {}
        repeated = repeats(run, self.device, self.prefixes.store.root)
        if not repeated:
            warnings.warn(
                f"{device_name(self.device)}: the same ten steps did not give the same bits twice, so runs "
                "share no prefixes on it",
                stacklevel=2,
            )
        return self.prefixes if repeated else None, {"repeats": repeated}

    def _wait(self) -> bool:
        """Wait for the process that is training the same run, unless asked to stop."""
        if self.stop():
            raise InterruptedRunError
        return True

    def test_loss(self, run: Run) -> float | None:
        """The loss of a finished run on the test split, on which nothing else is ever evaluated.

        None if it is not finite: the model has diverged. What the model writes is kept beside it.
        """
        folder = self.folder / run.identity
        path = folder / TEST
        if path.exists():
            return read_test_loss(folder)
        state = trained(folder, self.device)
        config = read_run(folder).config.training
        windows = windows_of(self.corpus.test, config.final_tokens, config.context)
        chunk = config.micro_tokens or config.batch_tokens
        parts = windows.tensor_split(min(STRETCHES, len(windows)))
        stretches = [evaluate(state.model, part, chunk) for part in parts]
        measured = sum(loss * len(part) for loss, part in zip(stretches, parts, strict=True)) / len(windows)
        loss = measured if math.isfinite(measured) else None
        recorded = [one if math.isfinite(one) else None for one in stretches]
        written = {} if loss is None or not run.variant.causal else self._sample(state.model)
        write_json(path, {"test": loss, "tokens": windows[:, 1:].numel(), "stretches": recorded, **written})
        return loss

    def _sample(self, model: Transformer) -> dict[str, str]:
        """The beginning of the test split, and what a model makes of it; the same random numbers for all."""
        prompt = [int(token) for token in self.corpus.test[:PROMPT]]
        added = islice(generate(model, prompt, temperature=TEMPERATURE, top=None, seed=0), SAMPLE)
        decode = self.corpus.tokenizer.decode
        return {"prompt": decode(prompt), "sample": decode(list(added))}


def read_test_loss(folder: Path) -> float | None:
    """The recorded loss of a run on the test split; None if it was not measured, or diverged."""
    path = folder / TEST
    if not path.exists():
        return None
    loss: float | None = read_json(path)["test"]
    return loss


def so_far(folder: Path, status: str) -> Result:
    """What a run that has not ended has cost so far, as its last record says."""
    last: dict[str, Any] = {"step": 0, "tokens": 0, "charged": 0, "executed": 0, "seconds": 0.0}
    for record in read_metrics(folder):
        last = record
    return Result(
        status=status,
        validation=None,
        steps=last["step"],
        tokens=last["tokens"],
        charged=last["charged"],
        executed=last["executed"],
        seconds=last["seconds"],
        parameters=0,
    )


def evaluations(folder: Path) -> Iterator[tuple[float, float]]:
    """The evaluations of a run so far: fraction of the budget, aligned between runs, and loss."""
    for record in read_metrics(folder):
        if record["kind"] == "evaluation" and record["validation"] is not None:
            yield record["aligned"], record["validation"]
