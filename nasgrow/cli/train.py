"""``nasgrow train``: train one run and show its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from nasgrow.cli.next_steps import load_best
from nasgrow.cli.signals import asked_to_stop
from nasgrow.data import prepare, vocabulary
from nasgrow.strict import with_prefix
from nasgrow.study.folders import check_folder
from nasgrow.trackers import tracking
from nasgrow.training.atomic_files import to_json
from nasgrow.training.device import pick_device
from nasgrow.training.folder import open_folder
from nasgrow.training.loop import InterruptedRunError, train
from nasgrow.training.loop import Progress as Standing
from nasgrow.training.records import DESCRIPTION, TOKENIZER, Result
from nasgrow.training.run import Run


def run(
    file: Path, flops: float | None, seed: int | None, out: Path | None, as_json: bool, quiet: bool
) -> int:
    """Train the run of ``file``, or resume it; if it has ended, show its result.

    Args:
        file: A schedule, run or study file, or a study's folder, as for :func:`load_best`.
        flops: The budget in place of the file's, unless it is None.
        seed: The seed in place of the file's, unless it is None.
        out: The folder of the run; by default ``runs/NAME-IDENTITY``.
        as_json: Whether to print progress and result as JSON lines.
        quiet: Whether to print the result only.

    Returns:
        The exit code: 0, 1 if training diverged, or 130 if the user stopped it.
    """
    loaded, what = load_best(file)
    config = loaded.with_options(flops=flops, seed=seed)
    vocab = vocabulary(config.data.tokens)
    with_prefix(str(file), lambda: Run.resolve(config, vocab=vocab, fingerprint=""))  # fails early
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    chatty = not (quiet or as_json)
    if what is not None and chatty:
        console.print(what, style="dim")
    corpus = prepare(config.data, report=lambda line: console.print(line, style="dim") if chatty else None)
    described = Run.resolve(config, vocab=corpus.vocab, fingerprint=corpus.fingerprint)
    folder = out or Path("runs") / f"{file.stem}-{described.identity}"
    check_folder(folder, DESCRIPTION, "choose another --out", [TOKENIZER])
    device = pick_device()
    with open_folder(folder, described, corpus.tokenizer, device) as before:
        if before is not None and chatty:
            console.print(f"{folder}: the run has ended already", style="dim")
        try:
            trackers = () if before is not None else config.training.trackers
            with (
                watching(console, chatty, as_json) as shown,
                tracked(trackers, folder, shown) as watch,
                asked_to_stop() as stop,
            ):
                ended = before or train(
                    described,
                    corpus,
                    folder,
                    device=device,
                    watch=watch,
                    warn=lambda line: console.print(f"warning: {line}", style="yellow"),
                    stop=stop,
                )
        except InterruptedRunError:
            if as_json:
                print(to_json({"kind": "interrupted", "folder": str(folder)}))
            else:
                console.print(f"stopped and saved in {folder}; the same command resumes")
            return 130
    result = {"kind": "result", "folder": str(folder), **asdict(ended)}
    print(to_json(result) if as_json else summary(folder, ended))
    return 0 if ended.status == "finished" else 1


@contextmanager
def tracked(
    trackers: Sequence[str], folder: Path, watch: Callable[[Standing], None]
) -> Iterator[Callable[[Standing], None]]:
    """Extend ``watch``: a call also sends the run's new records to its trackers.

    Records are sent at most every :data:`nasgrow.trackers.UPDATE_SECONDS`, and the rest on exit.

    Yields:
        A function to call with the progress of the training, in place of ``watch``.
    """
    live = tracking(trackers, folder)

    def show(standing: Standing) -> None:
        watch(standing)
        if live is not None:
            live.update()

    try:
        yield show
    finally:
        if live is not None:
            live.close()


@contextmanager
def watching(console: Console, chatty: bool, as_json: bool) -> Iterator[Callable[[Standing], None]]:
    """Show progress as JSON lines, or as a bar on a terminal if ``chatty``, or not at all.

    Yields:
        A function to call with the progress of the training.
    """
    if as_json:
        yield lambda standing: print(to_json({"kind": "progress", **asdict(standing)}), flush=True)
        return
    if not (chatty and console.is_terminal):
        yield lambda standing: None
        return
    columns = (
        TextColumn("stage {task.fields[stage]}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("loss {task.fields[loss]}  validation {task.fields[validation]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=1.0, stage="1", loss="", validation="")

        def show(standing: Standing) -> None:
            progress.update(
                task,
                completed=standing.fraction,
                stage=f"{standing.stage + 1} of {standing.stages}",
                loss="" if standing.loss is None else f"{standing.loss:.3f}",
                validation="" if standing.validation is None else f"{standing.validation:.3f}",
            )

        yield show


def summary(folder: Path, result: Result) -> str:
    """Return the result of a run in one line."""
    spent = f"{result.charged:.3g} FLOPs, {result.tokens:,} tokens, {result.seconds:.0f} s"
    if result.validation is None:
        return f"diverged after {spent}; records in {folder}"
    return f"validation loss {result.validation:.4f} after {spent}; records in {folder}"
