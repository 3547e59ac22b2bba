"""The Python interface: run studies, load models and generate text.

The top level has the same names: ``nasgrow.Study``, ``nasgrow.load``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nasgrow.data import Tokenizer, load_tokenizer
from nasgrow.data.tokenizers import open_saved
from nasgrow.driver import Driver
from nasgrow.errors import UserError
from nasgrow.experiments.search import Observer, Workplace, confirm, search
from nasgrow.export import SHAPE_FILE, check_context, load_model
from nasgrow.generate import generate
from nasgrow.huggingface.checkpoint import is_checkpoint
from nasgrow.huggingface.tokenizer import saved_tokens
from nasgrow.model import Transformer
from nasgrow.report.curve import draw_curve
from nasgrow.report.frames import curves_frame, trials_frame
from nasgrow.report.write import write_report
from nasgrow.schedule import shape_to
from nasgrow.shape import Shape
from nasgrow.study.best import BestSchedule, best_run, best_schedule
from nasgrow.study.config import STUDY, study_from
from nasgrow.study.step_prices import read_steps
from nasgrow.study.store import shown_study
from nasgrow.study.study import ResolvedStudy, open_study
from nasgrow.study.study_folder import read_study
from nasgrow.study.summary import Summary
from nasgrow.training.records import TOKENIZER
from nasgrow.training.resume import trained

if TYPE_CHECKING:
    import optuna
    import pandas as pd  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer.

    Attributes:
        model: A :class:`torch.nn.Module` that maps tokens to logits.
        tokenizer: Turns text into tokens and back; None if the folder of an exported model has
            none, or that of a Hugging Face checkpoint no usable one.
    """

    model: Transformer
    tokenizer: Tokenizer | None

    def generate(
        self,
        prompt: str = "",
        *,
        tokens: int = 200,
        temperature: float = 0.8,
        top: int | None = None,
        seed: int = 0,
    ) -> str:
        """Return the text that the model adds to a prompt, up to the end of the document.

        Args:
            prompt: The text to begin with; if it is empty, the model begins a document. If it
                exceeds the context, only its end counts.
            tokens: The most tokens to add. They may exceed the context: when it is full, its older
                half is dropped.
            temperature: Logits are divided by it; 0 always chooses the likeliest token.
            top: Sample from this many of the likeliest tokens only; None samples from all.
            seed: The seed of the sampling.

        Raises:
            UserError: There is no tokenizer, the model is not causal, the temperature is below 0 or
                not finite, or ``top`` is below 1.
        """
        if self.tokenizer is None:
            raise UserError("the model was loaded from a folder without a usable tokenizer")
        start = self.tokenizer.encode(prompt) or [self.tokenizer.end]
        added: list[int] = []
        for token in islice(generate(self.model, start, temperature=temperature, top=top, seed=seed), tokens):
            if token == self.tokenizer.end:
                break
            added.append(token)
        return self.tokenizer.decode(added)


def load(path: str | Path, context: int | None = None) -> Loaded:
    """Load a model onto the CPU, and its tokenizer, from a folder.

    Args:
        path: The folder of a run, of an exported model (``nasgrow export``) or of a Hugging Face checkpoint.
            The folder or the file of a study gives the model of its best schedule.
        context: The longest sequence for a Hugging Face checkpoint, in tokens; the checkpoint's by
            default. Other models have a fixed one, and another raises an error.

    Raises:
        UserError: The folder has no usable model, or one that our transformer cannot represent
            exactly; the model of a run or an exported one has another context than ``context``; or a
            study has no finished search trial, or has not kept the weights of its best schedule.

    Examples:
        >>> model = nasgrow.load("runs/my-study")
        >>> text = model.generate("Once", tokens=20)
    """
    folder = Path(path)
    if folder.is_file() or (folder / STUDY).is_file():
        _, study = open_study(folder)
        _, folder = best_run(read_study(study).trials, study)
    theirs = is_checkpoint(folder)
    if not theirs and not (folder / SHAPE_FILE).exists():
        model = trained(folder).model
        check_context(model, context, folder)
        return Loaded(model, load_tokenizer(folder / TOKENIZER))
    model = load_model(folder, context)
    if not (folder / TOKENIZER).exists():
        return Loaded(model, None)
    if not theirs:
        return Loaded(model, load_tokenizer(folder / TOKENIZER))
    try:
        return Loaded(model, open_saved(saved_tokens(folder)))
    except UserError:  # the model itself can be used and grown
        return Loaded(model, None)


class Study:
    """A study, which can be run, confirmed, inspected and reported.

    Results go to ``runs/NAME`` in the working folder, where the command line puts them too. Running a study
    again resumes it. Nothing is written before :meth:`run`.

    Args:
        name: The name of the study and of its folder.
        fields: The fields of a study file, which the reference page "Study file" lists. Paths are relative
            to the working folder. ``final`` may be a :class:`~nasgrow.shape.Shape`.

    Raises:
        UserError: A field is invalid.

    Examples:
        >>> study = nasgrow.Study(
        ...     "example",
        ...     final=nasgrow.Shape.uniform(hidden=16, layers=2, mlp=32, heads=2, key=8, value=8),
        ...     space={
        ...         "from": "compound",
        ...         "dims": ["layers"],
        ...         "start": [1, 0.5],
        ...         "times": {"low": 0.2, "high": 0.6, "step": 0.2},
        ...     },
        ...     budget={"flops": 1e8},
        ...     tune={"learning_rate.peak": [0.01]},
        ...     data={"text": {"source": "files", "paths": ["book.txt"]}},
        ...     training={
        ...         "context": 32,
        ...         "batch_tokens": 128,
        ...         "evaluation_tokens": 512,
        ...         "final_tokens": 2048,
        ...     },
        ...     trials=2,
        ... )
        >>> study.run(progress=False).best.confirmed
        False
        >>> sorted(study.trials.kind.unique())
        ['baseline', 'fixed', 'search']
    """

    def __init__(self, name: str, **fields: Any) -> None:
        if isinstance(fields.get("final"), Shape):
            fields["final"] = shape_to(fields["final"])
        config = study_from({"name": name, **fields}, Path.cwd() / f"{name}.yaml")
        self._open: Callable[[], tuple[ResolvedStudy, Path]] = lambda: (
            ResolvedStudy.resolve(config, name, read_steps(Path("runs") / config.name)),
            Path("runs") / config.name,
        )
        self._resolved, self.folder = self._open()

    @classmethod
    def from_file(cls, path: str | Path) -> Study:
        """Open the study of a study file, or of a study's folder.

        Raises:
            UserError: There is no such file, or it is invalid.

        Examples:
            >>> nasgrow.Study.from_file("runs/example").name
            'example'
        """
        handle = cls.__new__(cls)
        handle._open = lambda: open_study(Path(path))
        handle._resolved, handle.folder = handle._open()
        return handle

    @property
    def name(self) -> str:
        """The name of the study."""
        return self._resolved.config.name

    def run(
        self,
        *,
        trials: int | None = None,
        workers: int | None = None,
        engine: str = "local",
        address: str | None = None,
        progress: bool = True,
    ) -> Study:
        """Train the baselines and search, or resume both; return this study.

        On a ``KeyboardInterrupt`` the workers save their state before it is raised again.

        Args:
            trials: The number of search trials, in place of the study's; a larger number adds trials.
            workers: The number of trials to train at once; by default the study's ``workers``, else
                as many as fit on the machine or the cluster.
            engine: ``local`` or ``ray``.
            address: The address of a Ray cluster; by default Ray runs on this machine only.
            progress: Whether to show a progress bar, on a terminal or in a notebook.

        Raises:
            UserError: The study cannot be run, or it began with other settings.
            WorkerError: A worker failed.
        """
        if trials is not None:
            config = self._resolved.config.model_copy(update={"trials": trials})
            self._resolved = ResolvedStudy.resolve(config, self.name, self._resolved.steps)
        with _observing(progress) as observer:
            search(self._resolved, self.folder, _place(engine, address, workers), observer)
        return self

    def confirm(
        self,
        *,
        top: int = 3,
        seeds: int = 5,
        each: str | None = None,
        workers: int | None = None,
        engine: str = "local",
        address: str | None = None,
        progress: bool = True,
    ) -> Study:
        """Retrain the best schedules and baselines with fresh seeds; measure their test loss.

        Before that, tune the final shape and the two best fixed shapes under other budgets. Return
        this study.

        Args:
            top: The number of schedules to confirm, and of fixed shapes. The best baselines are
                confirmed in any case.
            seeds: The number of fresh seeds for each.
            each: A searched parameter: confirm the best ``top`` schedules for each of its values.
                By default, confirm the best of all.
            workers: As in :meth:`run`.
            engine: As in :meth:`run`.
            address: As in :meth:`run`.
            progress: As in :meth:`run`.

        Raises:
            UserError: The study has no finished trial or no parameter ``each``, or cannot be run.
            WorkerError: A worker failed.
        """
        read_study(self.folder)  # raises UserError without a study
        with _observing(progress) as observer:
            place = _place(engine, address, workers)
            confirm(self._resolved, self.folder, place, observer, top=top, each=each, seeds=seeds)
        return self

    def report(self, to: str | Path | None = None) -> Path:
        """Write the report, and return the path of its page; an older report is replaced.

        Args:
            to: The report's folder; by default ``reports/NAME`` in the working directory.

        Raises:
            UserError: The study has not begun, its file has become invalid, or the folder holds
                anything but a report.
        """
        study, _ = self._open()
        to = Path(to) if to is not None else Path("reports") / self.name
        write_report(study, self.folder, to)
        return to / "index.html"

    @property
    def best(self) -> BestSchedule | None:
        """The best confirmed schedule or fixed shape; the best search trial if none is confirmed.

        None if no search trial has finished either.
        """
        return best_schedule(read_study(self.folder).trials)

    @property
    def trials(self) -> pd.DataFrame:
        """A row for each trial of every kind: baselines, schedules, fixed shapes and confirmations."""
        return trials_frame(read_study(self.folder).trials)

    def curves(self) -> pd.DataFrame:
        """Return a row for each evaluation of each run: its validation loss and its time."""
        return curves_frame(read_study(self.folder).trials, self.folder)

    @property
    def optuna_study(self) -> optuna.Study:
        """The search as an Optuna study in the study's storage; only nasgrow should write to it."""
        read_study(self.folder)  # raises UserError without a study
        return shown_study(self._resolved, self.folder)

    def __repr__(self) -> str:
        return f"nasgrow.Study({self.name!r}, in {str(self.folder)!r})"


def _place(engine: str, address: str | None, workers: int | None) -> Workplace:
    if engine not in ("local", "ray"):
        raise UserError(f"engine: must be 'local' or 'ray', not {engine!r}")
    return Workplace("ray" if engine == "ray" else "local", address, workers)


@contextmanager
def _observing(progress: bool) -> Iterator[Observer]:
    """Show a text bar, in a terminal or a notebook; yield the callbacks that update it."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    with tqdm(disable=not progress, unit="trial", file=sys.stderr, dynamic_ncols=True) as bar:

        def watch(driver: Driver) -> None:
            summary = driver.summary()
            bar.total, bar.n = _total(summary, "search" in driver.schedulers), summary.counts.done
            if summary.best is not None:
                bar.set_postfix_str(f"best loss {summary.best.loss:.4f}", refresh=False)
            bar.refresh()

        yield Observer(
            note=lambda line: bar.write(line, file=sys.stderr) if progress else None,
            begun=lambda folder, workers: bar.set_description(str(folder), refresh=False),
            watch=watch,
            warn=lambda line: bar.write(f"warning: {line}", file=sys.stderr),
            stop=lambda: False,
            draw=draw_curve,
        )


def _total(summary: Summary, searching: bool) -> int | None:
    """Return the number of trials of all kinds, ended and planned; None if only time limits it.

    It grows when the tuning of baselines adds values.
    """
    counts = summary.counts
    done, planned = (counts.ended, counts.planned) if searching else (counts.confirmed, counts.confirming)
    if planned is None:
        return None  # limited by time
    waiting = max(0, (counts.least_baselines or 0) - counts.baselines)
    return counts.done - done + planned + waiting
