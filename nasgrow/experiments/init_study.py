"""Propose a first study for a text and a model size: a shape, batch, learning rate and budget that fit.

The learning rate and the batch size follow the scaling laws of Bi et al. (2024, "DeepSeek LLM", section 3.1)
over the compute C of a run, fitted from 1e17 FLOPs on: 0.3118 C^-0.125, and 0.2920 C^0.3271 tokens. At 4e11
FLOPs, half as many tokens were better with our training loop. So below 1e17 FLOPs the batch has
0.0318 C^0.3837 tokens, which joins that measurement with their law (``docs/how-to/own-text.md``).
"""

from __future__ import annotations

import glob
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from nasgrow.config import Files, absolute_path, absolute_pattern
from nasgrow.data.local import find_files
from nasgrow.errors import UserError
from nasgrow.experiments.forecast import plan_study
from nasgrow.flops import parameter_count, step_flops
from nasgrow.schedule import shape_to
from nasgrow.shape import Shape, Variant
from nasgrow.spaces.training import PEAK
from nasgrow.study.config import study_from, thread_count, worker_count
from nasgrow.study.study import ResolvedStudy
from nasgrow.training.device import gpu_count
from nasgrow.training.step_timing import measure_steps

Device = Literal["cpu", "cuda"]

MIN_PARAMETERS, MAX_PARAMETERS = 10_000, 10_000_000_000
"""The range of parameter counts that a study can be proposed for."""

TOKENS_PER_PARAMETER = 20.0
"""The budget of a run (Hoffmann et al. 2022), unless the user's hours are too few for it."""

SPARE = 0.8
"""The share of the user's hours that the proposal plans to use, because a forecast is not exact."""

INIT_TRIALS = 16
"""The number of trials of a proposed study."""

SUBWORDS = {3e6: 4096, 30e6: 16384}
"""The vocabulary size from a number of parameters on; smaller models read bytes."""

MEASURED_TOKENS = 2048
"""The most tokens of a step whose time is measured, unless a single sequence is longer."""

LEAST_SUBWORD_BYTES = 1_000
"""The least bytes of text for each token of a vocabulary; with less text the vocabulary is smaller."""

VARIANT = {"positions": "rope", "final_norm": True}


@dataclass(frozen=True)
class Wanted:
    """The user's wishes for a study.

    Attributes:
        text: A file, a folder, a pattern, or the name of a Hugging Face dataset.
        parameters: The approximate number of parameters of the final shape.
        device: The device that it will be trained on.
        hours: How long baselines and search may take; None for no limit.
    """

    text: str
    parameters: float
    device: Device
    hours: float | None = None


@dataclass(frozen=True)
class Proposal:
    """A proposed study.

    Attributes:
        fields: The fields of the study file.
        study: The resolved study.
        hours: How long baselines and search take on this machine, by the upper end of the forecast; None
            if not measured.
        tokens_per_parameter: The budget of every run, as tokens for each parameter of the final
            shape.
    """

    fields: dict[str, Any]
    study: ResolvedStudy
    hours: float | None
    tokens_per_parameter: float


def learning_rate(flops: float) -> float:
    """Return the peak learning rate for a run of this compute, to two digits."""
    return float(f"{0.3118 * flops**-0.125:.2g}")


def batch_tokens(flops: float, context: int) -> int:
    """Return the batch size in tokens for a run of this compute: a power of two, at least one context."""
    return max(context, 1 << max(0, round(math.log2(min(0.2920 * flops**0.3271, 0.0318 * flops**0.3837)))))


def scratch_flops(final: Shape, variant: Variant, tokens_per_parameter: float) -> float:
    """Return the FLOPs of training a shape from scratch, not rounded to whole steps."""
    sequence = step_flops(final, variant, 1) / variant.context
    return sequence * tokens_per_parameter * parameter_count(final, variant)


def propose(wanted: Wanted, file: Path) -> Proposal:
    """Propose a study; write no file.

    Training steps are timed on the device, with a worker's number of threads, which torch keeps in
    this process. From them follow the hours that baselines and search take. If these exceed the
    share :data:`SPARE` of the user's hours, the budget is cut to that share. Neither is done for a
    GPU on a machine without one.

    Args:
        wanted: The user's wishes.
        file: The path of the future study file; paths in it are relative to its folder.

    Raises:
        UserError: The number of parameters is out of range, there is no such text, it is empty or
            cannot be read, or no study fits.
    """
    if not MIN_PARAMETERS <= wanted.parameters <= MAX_PARAMETERS:
        raise UserError(
            f"--params: must be from {MIN_PARAMETERS:,} to {MAX_PARAMETERS:,}, not {wanted.parameters:,.0f}"
        )
    data, size = text_section(wanted.text, file.parent)
    vocab = vocabulary_for(wanted.parameters, size)
    if vocab is not None:
        data["tokens"] = {"kind": "bpe", "vocab": vocab}
    context = 128 if wanted.parameters < 1e6 else 256 if wanted.parameters < 30e6 else 512
    variant = Variant(vocab=vocab or 256, context=context, positions="rope", final_norm=True)
    final = shape_for(wanted.parameters, variant, wanted.device)
    tokens = TOKENS_PER_PARAMETER
    fields, study = _study(file, final, variant, data, tokens, wanted)
    pace = None if wanted.device == "cuda" and not gpu_count() else _pace(study, torch.device(wanted.device))
    hours = None if pace is None else _hours(study, pace)
    if hours is not None and wanted.hours is not None and hours > SPARE * wanted.hours:
        tokens = float(f"{tokens * SPARE * wanted.hours / hours:.2g}")
        fields, study = _study(file, final, variant, data, tokens, wanted)
        hours = hours * tokens / TOKENS_PER_PARAMETER
    return Proposal(fields, study, hours, tokens)


def _study(
    file: Path, final: Shape, variant: Variant, data: dict[str, Any], tokens: float, wanted: Wanted
) -> tuple[dict[str, Any], ResolvedStudy]:
    """Return the fields of a study file with these tokens per parameter, and the resolved study.

    The batch is halved until the study can be resolved.

    Raises:
        UserError: It cannot be resolved even with batches of one sequence.
    """
    flops = scratch_flops(final, variant, tokens)
    batch, peak = batch_tokens(flops, variant.context), learning_rate(flops)
    fields: dict[str, Any] = {
        "final": shape_to(final),
        "variant": VARIANT,
        "budget": {"tokens_per_parameter": tokens},
        "data": data,
        "space": "independent",
        "tune": {PEAK: ["x0.5", "x1", "x2"]},
        "trials": INIT_TRIALS,
    }
    if wanted.device == "cpu" and gpu_count():
        fields["resources"] = {"gpus": 0}
    while True:
        fields["training"] = {
            "context": variant.context,
            "batch_tokens": batch,
            "learning_rate": {"peak": peak},
        }
        try:
            return fields, ResolvedStudy.resolve(study_from(fields, file), str(file))
        except UserError:
            if batch <= variant.context and tokens == TOKENS_PER_PARAMETER:
                raise  # the hours did not reduce the tokens, so something else is wrong
            if batch <= variant.context:
                raise UserError(
                    f"--hours: {wanted.hours:g} are too few for {parameter_count(final, variant):,} "
                    f"parameters: they allow {tokens:.2g} tokens for each; give more hours, or fewer --params"
                ) from None
            batch //= 2  # more steps, so that there are steps between any two times of the space


def _workers(study: ResolvedStudy) -> int:
    return worker_count(study.config, None, gpu_count())


def _hours(study: ResolvedStudy, pace: float) -> float:
    """Return the most hours that baselines and search will take, given a worker's FLOPs per second."""
    cpu = torch.device("cpu")  # nothing is measured
    workers, folder = _workers(study), Path("runs") / study.config.name
    found, _ = plan_study(study, folder, workers=workers, device=cpu, timed=False)
    flops = found.between(lambda course: course.total.executed)
    assert flops is not None
    return flops[1] / pace / workers / 3600


def _pace(study: ResolvedStudy, device: torch.device) -> float:
    """Return the FLOPs per second of the slower of two shapes, measured on a worker's threads.

    One shape is the final one. The other has half the final size in every dimension that the space
    may grow. Both are cut to two layers, and steps to :data:`MEASURED_TOKENS` tokens or one
    sequence. This is faster to time, and the FLOPs per second are about the same. This process
    keeps the number of threads of a worker.
    """
    torch.set_num_threads(thread_count(study.config.resources, _workers(study)))
    training = study.config.training
    tokens = max(training.context, min(training.batch_tokens, MEASURED_TOKENS))
    training = training.model_copy(update={"batch_tokens": tokens})
    shapes = [shape.with_layers(shape.layers[:2]) for shape in (study.final, study.space.fixed(0.5))]
    steps = measure_steps([(shape, training) for shape in dict.fromkeys(shapes)], study.variant, device)
    return min(
        step_flops(shape, study.variant, training.sequences) / steps.of(shape, study.variant, training)
        for shape in shapes
    )


def shape_for(parameters: float, variant: Variant, device: Device) -> Shape:
    """Return a uniform shape with about this number of parameters, in sizes that suit a device.

    Its hidden size is a multiple of 64 on a GPU if the model is large enough, and of 16 otherwise. It has one
    layer or an even number of layers, and wider models are deeper.
    """
    multiple = 64 if device == "cuda" and parameters >= 1e6 else 16
    slender = 16 if parameters < 1e6 else 32 if parameters < 30e6 else 64
    best, least = None, math.inf
    for hidden in range(multiple, 16_384, multiple):
        for layers in (1, *range(2, 129, 2)):
            shape = _uniform(hidden, layers)
            count = parameter_count(shape, variant)
            off = abs(math.log(count / parameters))
            worse = 4 * off + abs(math.log(hidden / layers / slender))
            if worse < least:
                best, least = shape, worse
            if count > 2 * parameters:
                break
        if parameter_count(_uniform(hidden, 1), variant) > 2 * parameters:
            break
    assert best is not None
    return best


def _uniform(hidden: int, layers: int) -> Shape:
    head = 64 if hidden >= 256 else 32 if hidden >= 128 else 16
    head = head if hidden % head == 0 else 16
    heads = hidden // head
    return Shape.uniform(hidden=hidden, layers=layers, mlp=4 * hidden, heads=heads, key=head, value=head)


def vocabulary_for(parameters: float, size: float) -> int | None:
    """Return the vocabulary size for a number of parameters and bytes of text; None to read bytes."""
    found = None
    for least, vocab in SUBWORDS.items():
        if parameters >= least and size >= LEAST_SUBWORD_BYTES * vocab:
            found = vocab
    return found


def text_section(text: str, folder: Path) -> tuple[dict[str, Any], float]:
    """Return the ``data`` section for a text, and the text's size in bytes; infinite if unknown.

    Args:
        text: A file, a folder or a pattern, relative to the working directory; or the name
            ``owner/name`` of a Hugging Face dataset, which is not looked up.
        folder: The folder of the study file.

    Raises:
        UserError: There is no such text, or it is empty or cannot be read.
    """
    here = absolute_path(text, Path())
    if not here.exists() and not any(sign in text for sign in "*?["):
        version = Path(text).suffix[1:2].isdigit()  # as in owner/name-v1.0; other suffixes are those of files
        if text.count("/") == 1 and text[0] not in "./~" and (version or not Path(text).suffix):
            return {"text": {"source": "hub", "name": text}}, math.inf
        raise UserError(
            f"--text: {text!r} is no file and no folder, and no dataset's name such as owner/name"
        )
    pattern = str(absolute_pattern(text, Path()))
    if os.path.isabs(os.path.expanduser(text)):
        named = str(here)
    else:
        named = os.path.relpath(pattern, folder if here.exists() else glob.escape(os.path.abspath(folder)))
    files = find_files(Files(source="files", paths=[pattern]))
    if not files:
        raise UserError(f"--text: {text!r} is empty")
    section: dict[str, Any] = {"source": "files", "paths": [named]}
    column = next((column_of(path, loader) for path, loader in files.items() if loader != "text"), "text")
    if column != "text":
        section["column"] = column
    return {"text": section}, sum(path.stat().st_size for path in files)


def column_of(path: Path, loader: str) -> str:
    """Guess which column of a data file holds the text, from the file's first row.

    A column named ``text`` wins if its value is a string. Otherwise it is the column with the
    longest string. If no column holds a string, or the file has no row, return ``text``.

    Args:
        path: The file.
        loader: The loader of Hugging Face ``datasets`` for its format, such as ``json``.

    Raises:
        UserError: The file cannot be read.
    """
    row = _first_row(path, loader)
    words = {name: value for name, value in row.items() if isinstance(value, str)}
    if "text" in words or not words:
        return "text"
    return max(words, key=lambda name: len(words[name]))


def _first_row(path: Path, loader: str) -> dict[str, Any]:
    """Return the first row of a data file, by column; empty if there is none."""
    from nasgrow.data.loading import quiet_datasets

    try:
        rows = quiet_datasets().load_dataset(loader, data_files=[str(path)], split="train", streaming=True)
        return dict(next(iter(rows), {}))
    except Exception as error:  # the library raises all kinds
        raise UserError(
            f"--text: {str(path)!r} cannot be read: {' '.join(str(error).split())[:200]}"
        ) from None
