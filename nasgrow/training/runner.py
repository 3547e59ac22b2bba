"""Train each run in a folder for it: start or resume it, or read its result if it has ended."""

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

SEGMENTS = 16
"""The number of parts of the test text whose losses are recorded separately.

Their variance shows how much the loss depends on the choice of text.
"""

PROMPT, SAMPLE = 32, 200
"""The tokens of the test split that prompt a tested model, and the tokens that it generates."""

TEMPERATURE = 0.8
"""The sampling temperature of a tested model."""


@dataclass(frozen=True)
class Runner:
    """Trains runs on one device.

    Attributes:
        folder: Holds a folder for each run, named by the run's identity: equal runs share one.
        corpus: The data.
        device: Where to train.
        watch: Called with progress.
        warn: Called with each warning.
        stop: Called after every step; returns whether to save and stop.
        prefixes: The prefix cache; None if runs share no prefixes.
    """

    folder: Path
    corpus: Corpus
    device: torch.device
    watch: Callable[[Progress], None]
    warn: Callable[[str], None]
    stop: Callable[[], bool]
    prefixes: PrefixCache | None = None

    def resolve(self, config: RunConfig) -> tuple[Run, Path]:
        """Return the run of a configuration, and its folder, which need not exist.

        Raises:
            UserError: As for :meth:`Run.resolve`.
        """
        run = Run.resolve(config, vocab=self.corpus.vocab, fingerprint=self.corpus.fingerprint)
        return run, self.folder / run.identity

    def train(self, run: Run, evaluated: Callable[[float, float], None]) -> Result:
        """Train a run to its end and return its result; if it has ended before, only return the result.

        While another process trains the same run, wait for it.

        Args:
            run: The run.
            evaluated: Called with the fraction of the budget and the validation loss, which may be
                NaN, at each evaluation but the one after the last step. If the run is resumed, the
                earlier evaluations with a finite loss are repeated first. An evaluation comes twice
                if its step is trained again or its state loaded from the cache. If the run has
                ended before, there are no calls. It may raise ``StopTrainingError`` to pause the
                run; the result then has the status ``paused``.

        Raises:
            InterruptedRunError: :attr:`stop` returned True; the state is saved.
            UserError: The run's folder cannot be used.
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
        """Return the prefix cache, and an entry about it for the run's description.

        The cache is None if training on this GPU does not give the same bits twice; a warning says
        so. Then a run continues only from checkpoints in its folder. The entry is empty on a CPU or
        without a cache.
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
        """Return True, to wait for the process that trains the same run.

        Raises:
            InterruptedRunError: :attr:`stop` returned True.
        """
        if self.stop():
            raise InterruptedRunError
        return True

    def test_loss(self, run: Run) -> float | None:
        """Return the loss of a finished run on the test split; None if it is not finite.

        It is measured once and recorded, with a sample of text that a causal model generates. The
        caller must make sure that the run has finished: the newest checkpoint is tested, whatever
        its step. Nothing else is ever evaluated on the test split.

        Raises:
            UserError: The run has no valid checkpoint, or the test split is too short.
        """
        folder = self.folder / run.identity
        path = folder / TEST
        if path.exists():
            return read_test_loss(folder)
        state = trained(folder, self.device)
        config = read_run(folder).config.training
        windows = windows_of(self.corpus.test, config.final_tokens, config.context)
        chunk = config.micro_tokens or config.batch_tokens
        parts = windows.tensor_split(min(SEGMENTS, len(windows)))
        segments = [evaluate(state.model, part, chunk) for part in parts]
        measured = sum(loss * len(part) for loss, part in zip(segments, parts, strict=True)) / len(windows)
        loss = measured if math.isfinite(measured) else None
        recorded = [one if math.isfinite(one) else None for one in segments]
        written = {} if loss is None or not run.variant.causal else self._sample(state.model)
        write_json(path, {"test": loss, "tokens": windows[:, 1:].numel(), "stretches": recorded, **written})
        return loss

    def _sample(self, model: Transformer) -> dict[str, str]:
        """Return the beginning of the test split as ``prompt``, and a model's continuation as ``sample``.

        The random seed is the same for all models.
        """
        prompt = [int(token) for token in self.corpus.test[:PROMPT]]
        added = islice(generate(model, prompt, temperature=TEMPERATURE, top=None, seed=0), SAMPLE)
        decode = self.corpus.tokenizer.decode
        return {"prompt": decode(prompt), "sample": decode(list(added))}


def read_test_loss(folder: Path) -> float | None:
    """Read the recorded test loss of a run; None if it was not measured or is not finite."""
    path = folder / TEST
    if not path.exists():
        return None
    loss: float | None = read_json(path)["test"]
    return loss


def so_far(folder: Path, status: str) -> Result:
    """Return the costs so far of a run that has not ended, from its last record; 0 without records.

    The result has this status, no validation loss and no number of parameters.
    """
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
    """Yield the evaluations of a run so far: the fraction of the budget, and the validation loss.

    A fraction is that at which the evaluation was due, so runs with different steps have the same fractions.
    Losses that are not finite are left out, and so is the evaluation after the last step.
    """
    for record in read_metrics(folder):
        if record["kind"] == "evaluation" and record["validation"] is not None:
            yield record["aligned"], record["validation"]
