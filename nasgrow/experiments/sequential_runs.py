"""Train the runs of an experiment that is not a study, one after the other, with a prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from nasgrow.data import Corpus
from nasgrow.study.config import PrefixCacheConfig
from nasgrow.study.costs import open_cache
from nasgrow.study.trials import RUNS
from nasgrow.training.device import pick_device
from nasgrow.training.loop import InterruptedRunError, Progress
from nasgrow.training.records import Result
from nasgrow.training.run import Run
from nasgrow.training.runner import Runner


@dataclass(frozen=True)
class RunObserver:
    """The callbacks of a command while runs are trained.

    Attributes:
        watching: Returns a context manager around the training of one run; it yields a function that is
            called with the run's progress.
        say: Called with each line about the experiment.
        warn: Called with each warning.
        stop: Returns True if the user wants to stop.
    """

    watching: Callable[[], AbstractContextManager[Callable[[Progress], None]]]
    say: Callable[[str], None]
    warn: Callable[[str], None]
    stop: Callable[[], bool]


class Trainer:
    """Trains runs in the folder of an experiment. A run that has ended is not trained again.

    Args:
        folder: The experiment's folder.
        corpus: The data.
        times: The fractions of the budget at which runs may begin to differ, where states are cached.
        observer: The callbacks.
    """

    def __init__(self, folder: Path, corpus: Corpus, times: Sequence[float], observer: RunObserver) -> None:
        self._folder, self._corpus, self._observer = folder / RUNS, corpus, observer
        self._cache, self._device = open_cache(folder, PrefixCacheConfig(), times), pick_device()

    def train(
        self,
        run: Run,
        evaluated: Callable[[float, float], None] = lambda at, loss: None,
        *,
        tested: bool = False,
    ) -> tuple[Result, float | None]:
        """Train a run to its end, or resume it; return its result and its test loss.

        A run that has already ended is not trained. The test loss is None if ``tested`` is False,
        if the run has no final validation loss (paused or diverged), or if the test loss is not
        finite.

        Args:
            run: The run.
            evaluated: Called with the fraction of the budget and the validation loss, which may be
                NaN, at each evaluation except the one after the last step. A resumed run first
                repeats the calls of its earlier evaluations with a finite loss. A run that has
                already ended makes no calls. The callback may raise ``StopTrainingError`` to pause
                the run; the result's status is then ``paused``.
            tested: Whether to return the loss on the test split. It is measured once and recorded.

        Raises:
            InterruptedRunError: The user asked to stop; the state is saved.
            UserError: The run's folder cannot be used, holds no valid checkpoint to test, or the
                test split is too short.
        """
        stop = self._observer.stop
        if stop():
            raise InterruptedRunError
        with self._observer.watching() as watch:
            warn = self._observer.warn
            runner = Runner(self._folder, self._corpus, self._device, watch, warn, stop, self._cache)
            result = runner.train(run, evaluated)
            test = runner.test_loss(run) if tested and result.validation is not None else None
        return result, test
