"""Run files as strict, documented models; study files share their sections.

Every field has a type, a default where one makes sense, and a description. Unknown fields are
refused, and values are not converted: ``"3"`` is not 3.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, field_validator, model_validator

from nasgrow.errors import UserError
from nasgrow.flops import parameter_count, step_flops
from nasgrow.operators import PRESERVE, OperatorField
from nasgrow.schedule import Schedule, schedule_from, schedule_to, shape_from, shape_to
from nasgrow.shape import MAX_SIZE, Activation, NormPlacement, Positions, Shape, Variant
from nasgrow.strict import Strict, parse, read_mapping, with_prefix

MAX_BUDGET = 1e30
"""The upper limit of a budget in FLOPs or tokens; it catches typing errors."""


class PythonStdlib(Strict):
    """The source code of Python's standard library, without its tests and encodings. Every machine has it."""

    source: Literal["python-stdlib"] = "python-stdlib"


class Files(Strict):
    """Local files: JSON, JSON Lines or Parquet (one document a row); any other is UTF-8 text (one document).

    Text and JSON may be packed by gzip (``.txt.gz``, ``.jsonl.gz``).
    """

    source: Literal["files"]
    paths: Annotated[list[str], Field(min_length=1)]
    """Glob patterns, relative to the folder of the file that names them; ``**`` descends into
    folders. A pattern that matches only folders stands for the files in them."""
    column: str = "text"
    """The column that holds the text, for JSON and Parquet."""


class Hub(Strict):
    """A dataset of the Hugging Face hub."""

    source: Literal["hub"]
    name: str
    """The dataset's name, such as ``roneneldan/TinyStories``."""
    configuration: str | None = None
    """The dataset's configuration, if it has several. null: its default one."""
    split: str = "train"
    """The dataset's split to read. nasgrow cuts its training, validation and test text from it."""
    column: str = "text"
    """The column that holds the text."""
    revision: str | None = None
    """A commit, branch or tag of the dataset. null: the newest commit.

    A full commit needs no network once the data is prepared.
    """
    max_bytes: Annotated[int, Field(gt=0)] = 1_000_000_000
    """Read no more than this many bytes of text; the dataset is streamed until then."""


Source = Annotated[PythonStdlib | Files | Hub, Field(discriminator="source")]


class ByteTokens(Strict):
    """One token for each byte of UTF-8; byte 0 ends a document."""

    kind: Literal["bytes"] = "bytes"


class BpeTokens(Strict):
    """Byte-pair encoding, trained on the training split."""

    kind: Literal["bpe"]
    vocab: Annotated[int, Field(ge=257, le=1_000_000)]
    """The number of tokens, the 256 bytes and the end of a document among them."""


class SavedTokens(Strict):
    """A tokenizer saved by the ``tokenizers`` library."""

    kind: Literal["file"]
    path: str
    """The tokenizer's JSON file, relative to the folder of the file that names it."""
    end: str = "<|endoftext|>"
    """The token that ends a document."""


Tokens = Annotated[ByteTokens | BpeTokens | SavedTokens, Field(discriminator="kind")]


class DataConfig(Strict):
    """Which text, in which tokens, and how much of it is kept for evaluation."""

    text: Source = PythonStdlib()
    """Where the text comes from."""
    tokens: Tokens = ByteTokens()
    """How text becomes tokens."""
    validation: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """The share of the text, in bytes, on which the search compares models."""
    test: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """The share of the text, in bytes, that is kept for the verdict."""

    @field_validator("text", mode="before")
    @classmethod
    def _no_path(cls, text: object) -> object:
        if isinstance(text, str):
            raise UserError(f"must be a mapping such as {{source: files, paths: [{text}]}}, not {text!r}")
        return text


class LearningRate(Strict):
    """The learning rate as a function of the fraction of the budget spent."""

    peak: Annotated[float, Field(gt=0)] = 6e-3
    """The learning rate after warm-up."""
    law: Literal["wsd", "cosine", "constant"] = "wsd"
    """Warm-up, stable, decay; or warm-up and cosine decay; or warm-up alone."""
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """The fraction of the budget over which the learning rate rises linearly from zero."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.3
    """For ``wsd``: the last fraction of the budget, over which the learning rate falls linearly."""
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The learning rate at the end, as a share of the peak. ``constant`` ignores it."""
    rewarm: Annotated[float, Field(ge=0, lt=1)] = 0.03
    """After each event the learning rate drops, and rises back over this fraction of the budget.
    0: it does not drop."""
    rewarm_from: Annotated[float, Field(ge=0, le=1)] = 0.0
    """After each event the learning rate drops to this share of its value."""
    rewarm_scope: Literal["all", "new"] = Field(default="all", exclude_if=lambda scope: scope == "all")
    """The parameters whose rate drops after an event: all, or only the entries that it added."""
    event_factor: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Each event multiplies the learning rate by this, for good."""
    width_power: Annotated[float, Field(ge=-10, le=10)] = 0.0
    """The learning rate is multiplied by (final hidden size / hidden size) to this power."""

    @property
    def warms_new(self) -> bool:
        """Whether the entries that an event added, and no others, warm up after it."""
        return self.rewarm_scope == "new" and self.rewarm > 0 and self.rewarm_from < 1


LONGEST_RAMP = 0.9
"""The latest end of a ramp, as a fraction of the budget."""


class Ramp(Strict):
    """Shorter sequences, or smaller batches, until a fraction of the budget is spent.

    A ramp belongs to training: schedules and fixed shapes have the same one. It does not change the model.
    Evaluations always have the full context.
    """

    until: Annotated[float, Field(ge=0, le=LONGEST_RAMP)]
    """The fraction of the budget after which steps have their full size. 0: no ramp."""
    context: Annotated[int, Field(gt=0)] | None = None
    """Tokens in a sequence during the ramp. null: the training's."""
    batch_tokens: Annotated[int, Field(gt=0)] | None = None
    """Tokens in one step during the ramp, a multiple of that context. null: the training's."""


Tracker = Literal["tensorboard", "wandb"]
"""What shows records while a run trains."""


class TrainingConfig(Strict):
    """How a run trains, whatever its schedule."""

    context: Annotated[int, Field(gt=0)] = 128
    """Tokens in a sequence."""
    batch_tokens: Annotated[int, Field(gt=0)] = 4096
    """Tokens in one step; a multiple of the context."""
    micro_tokens: Annotated[int, Field(gt=0)] | None = None
    """Tokens in one forward pass, if a step does not fit the memory: a divisor of ``batch_tokens``.
    null: the whole step."""
    ramp: Ramp | None = Field(default=None, exclude_if=lambda ramp: ramp is None)
    """Shorter sequences or smaller batches at first. null: none."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW for everything; or Muon for matrices that multiply activations, and AdamW for the
    rest."""
    learning_rate: LearningRate = LearningRate()
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """The weight decay of matrices; gains and biases have none."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW's decay rate of first moments."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """AdamW's decay rate of second moments."""
    clip: Annotated[float, Field(gt=0)] | None = 1.0
    """Gradients are clipped to this norm. null: no clipping."""
    moments: Literal["fresh-new", "carry", "reset"] = "fresh-new"
    """The optimizer state of new entries: zero moments and step count 0 (``fresh-new``), or zero
    moments under the step count of their tensor (``carry``). ``reset`` drops all state, that of old
    entries too."""
    operator: OperatorField = PRESERVE
    """How new parameters get their values: an operator's name, a mapping with ``kind`` and options,
    or ``{width: operator, depth: operator}``."""
    evaluations: Annotated[int, Field(gt=0, le=10_000)] = 20
    """How many evaluations on the validation split a run has, evenly over the budget; the first is
    before the first step. One more follows the last step."""
    evaluation_tokens: Annotated[int, Field(gt=0)] = 8_192
    """Tokens in each evaluation."""
    final_tokens: Annotated[int, Field(gt=0)] = 131_072
    """Tokens in the evaluation that gives a run's final validation loss."""
    trackers: Annotated[tuple[Tracker, ...], Field(strict=False)] = Field(default=(), exclude=True)
    """What shows the records while a run trains. It does not change the run's identity."""

    @model_validator(mode="after")
    def _whole_sequences(self) -> Self:
        if self.batch_tokens % self.context:
            raise UserError(f"batch_tokens must be a multiple of the context of {self.context}")
        micro = self.micro_tokens or self.batch_tokens
        if micro % self.context or self.batch_tokens % micro:
            raise UserError("micro_tokens must be whole sequences, and divide batch_tokens")
        if self.ramp is not None:
            self._check_ramp(self.ramp)
        return self

    def _check_ramp(self, ramp: Ramp) -> None:
        if ramp.context is None and ramp.batch_tokens is None:
            raise UserError("ramp must have a context, batch_tokens, or both, below the training's")
        for name in ("context", "batch_tokens"):
            given, whole = getattr(ramp, name), getattr(self, name)
            if given is not None and given >= whole:
                raise UserError(f"ramp.{name} must be below the training's {whole}, not {given}")
        context, batch = ramp.context or self.context, ramp.batch_tokens or self.batch_tokens
        if batch % context:
            raise UserError(
                f"a ramp's batch of {batch} tokens must be a multiple of its context of {context}"
            )
        micro = min(self.micro_tokens or batch, batch)
        if micro % context or batch % micro:
            raise UserError(
                f"micro_tokens of {micro} must be whole sequences of a ramp's {context} tokens, and divide "
                f"its batch of {batch}"
            )

    @property
    def sequences(self) -> int:
        """Sequences of one step after the ramp."""
        return self.batch_tokens // self.context

    @property
    def in_ramp(self) -> TrainingConfig | None:
        """The settings of the steps in the ramp, with their sizes; None without a ramp."""
        ramp = self.ramp
        if ramp is None or ramp.until == 0:
            return None
        batch = ramp.batch_tokens or self.batch_tokens
        micro = self.micro_tokens if self.micro_tokens and self.micro_tokens < batch else None
        sizes = {"context": ramp.context or self.context, "batch_tokens": batch, "micro_tokens": micro}
        return self.model_copy(update={**sizes, "ramp": None})

    @property
    def kinds(self) -> list[TrainingConfig]:
        """The settings of each kind of step, in order: in the ramp, if any, and after it."""
        return [self] if self.in_ramp is None else [self.in_ramp, self]


BUDGET_UNITS = ("flops", "tokens", "tokens_per_parameter", "seconds")
"""The fields of a budget of which exactly one is given."""


class Budget(Strict):
    """What every run may spend, in exactly one unit: FLOPs, tokens of the final shape, or seconds."""

    flops: Annotated[float, Field(gt=0, le=MAX_BUDGET)] | None = None
    """Training FLOPs."""
    tokens: Annotated[float, Field(gt=0, le=MAX_BUDGET)] | None = None
    """The FLOPs that training the final shape on this many tokens costs."""
    tokens_per_parameter: Annotated[float, Field(gt=0, le=MAX_BUDGET)] | None = None
    """The FLOPs that training the final shape on this many tokens for each of its parameters
    costs."""

    seconds: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Seconds of training steps on a device, without evaluations."""
    step_seconds: (
        Annotated[list[Annotated[float, Field(ge=1e-9, le=1e9)]], Field(min_length=1, max_length=2002)] | None
    ) = None
    """For ``seconds``: how long a step of each stage takes. A run file must say it; a study
    measures it. With a ramp, list the ramp's steps of all stages first, then the full steps."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in BUDGET_UNITS if getattr(self, name) is not None]
        if len(given) != 1:
            raise UserError(f"a budget is exactly one of {', '.join(BUDGET_UNITS)}")
        if self.step_seconds is not None and self.seconds is None:
            raise UserError(f"step_seconds belong to a budget of seconds, not of {given[0]}")
        return self

    @property
    def currency(self) -> str:
        """What the budget limits, in a word: ``time`` if it is in seconds, else ``compute``."""
        return "compute" if self.seconds is None else "time"

    def timed(self, step_seconds: Sequence[float]) -> Budget:
        """Return this budget of seconds with ``step_seconds``, rounded to six digits."""
        return self.model_copy(update={"step_seconds": [float(f"{step:.6g}") for step in step_seconds]})

    def resolve(self, final: Shape, variant: Variant, training: TrainingConfig) -> int:
        """Return this budget, in whatever unit it is given, as FLOPs of training the final shape.

        Raises:
            UserError: It is in seconds and has no ``step_seconds``.
        """
        if self.flops is not None:
            return int(self.flops)
        tokens = Fraction(self.tokens or 0)
        if self.seconds is not None:
            if self.step_seconds is None:
                raise UserError(
                    "budget.step_seconds: must be the seconds of a step of each stage, where the budget is "
                    "seconds; nasgrow plan measures them"
                )
            tokens = Fraction(self.seconds) / Fraction(self.step_seconds[-1]) * training.batch_tokens
        if self.tokens_per_parameter is not None:
            tokens = Fraction(self.tokens_per_parameter) * parameter_count(final, variant)
        muon = training.optimizer == "muon"
        step = step_flops(final, variant, training.sequences, muon=muon)
        return int(tokens / training.batch_tokens * step)


class VariantConfig(Strict):
    """The kind of transformer: what does not grow (:class:`~nasgrow.shape.Variant`)."""

    activation: Activation = Variant.activation
    gated: bool = Variant.gated
    causal: bool = Variant.causal
    positions: Positions = Variant.positions
    final_norm: bool = Variant.final_norm
    tied: bool = Variant.tied
    queries: Annotated[int, Field(ge=1, le=MAX_SIZE)] = Variant.queries
    norm: NormPlacement = Variant.norm
    epsilon: Annotated[float, Field(gt=0)] = Variant.epsilon
    rope_base: Annotated[float, Field(gt=1)] = Variant.rope_base
    biases: bool = Variant.biases
    qkv_bias: bool = Variant.qkv_bias
    qk_norm: bool = Variant.qk_norm
    qk_epsilon: Annotated[float, Field(gt=0)] = Variant.qk_epsilon
    rope_frequencies: Annotated[tuple[float, ...], Field(strict=False)] | None = Variant.rope_frequencies

    def resolve(self, *, vocab: int, context: int, start: CheckpointStart | None = None) -> Variant:
        """Return the variant with its vocabulary size and context length.

        Args:
            vocab: The vocabulary size of the data.
            context: The number of tokens in a sequence.
            start: The checkpoint that training starts from, or None. Its vocabulary may be larger
                than that of the data, and is used then.

        Raises:
            UserError: The checkpoint's vocabulary is smaller than that of the data, or settings of
                the variant contradict each other.
        """
        if start is not None:
            if start.vocab < vocab:
                raise UserError(
                    f"data.tokens: has {vocab} tokens, and the checkpoint {start.folder!r} {start.vocab}"
                )
            vocab = start.vocab
        return Variant(vocab=vocab, context=context, **self.model_dump())


def _read_schedule(data: object) -> Schedule:
    return data if isinstance(data, Schedule) else schedule_from(data)


def _read_shape(data: object) -> Shape:
    return data if isinstance(data, Shape) else shape_from(data, "shape")


ScheduleField = Annotated[Schedule, PlainValidator(_read_schedule), PlainSerializer(schedule_to)]
"""A schedule, as a schedule file holds it."""
ShapeField = Annotated[Shape, PlainValidator(_read_shape), PlainSerializer(shape_to)]
"""A shape, as the ``start`` of a schedule file holds it."""


class CheckpointStart(Strict):
    """The Hugging Face checkpoint whose weights training starts from.

    A file need only say ``from``. nasgrow reads the other fields from the folder.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    folder: Annotated[str, Field(alias="from", min_length=1)]
    """The checkpoint's folder, relative to the working directory."""
    hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The hash of the checkpoint's configuration and weights."""
    vocab: Annotated[int, Field(ge=1, le=MAX_SIZE)]
    """The checkpoint's vocabulary size."""
    shape: ShapeField
    """The checkpoint's shape; a run that starts at a larger one grows it before the first step."""


class RunConfig(Strict):
    """One training: this schedule, this seed, this budget, on this data."""

    schedule: ScheduleField
    """Start shape and events, as in a schedule file."""
    budget: Budget = Budget(flops=1e12)
    data: DataConfig = DataConfig()
    variant: VariantConfig = VariantConfig()
    training: TrainingConfig = TrainingConfig()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """The seed of the weights, of the batches and of new parameters."""
    start: CheckpointStart | None = None
    """The checkpoint to start from: ``{from: FOLDER}``. null: fresh weights."""

    def with_options(self, *, flops: float | None = None, seed: int | None = None) -> RunConfig:
        """Return the run with a budget of ``flops`` or another seed; None leaves the run's.

        Raises:
            UserError: ``flops`` is no valid budget.
        """
        changes: dict[str, Any] = {} if seed is None else {"seed": seed}
        if flops is not None:
            changes["budget"] = parse(Budget, {"flops": flops}, "--budget")
        return self.model_copy(update=changes)


def load_run(path: Path) -> RunConfig:
    """Read a run file, or a schedule file, which is a run with default settings.

    Raises:
        UserError: The file cannot be read or is invalid.
    """
    document, where = run_document(path)
    return run_from(document, path, where)


def run_document(path: Path) -> tuple[dict[str, Any], str]:
    """Read a run file or schedule file as the plain data of a run, without checking its fields.

    A schedule that is given as the path of a file is read from there. Also return where the
    schedule is, for error messages: a file, or a field of a file.

    Raises:
        UserError: A file cannot be read or is no mapping, or there is no schedule.
    """
    data = read_mapping(path)
    if "start" in data and "schedule" not in data:
        return {"schedule": data}, str(path)
    if isinstance(data.get("schedule"), str):
        named = path.parent / data["schedule"]
        read = with_prefix(f"{path}: schedule", partial(read_mapping, named))
        return {**data, "schedule": read}, str(named)
    if "schedule" in data:
        return data, f"{path}: schedule"
    raise UserError(f"{path}: must hold a schedule (start, events) or a run (schedule, budget, ...)")


def run_from(document: dict[str, Any], path: Path, where: str) -> RunConfig:
    """Parse the plain data of a run, with paths relative to the folder of the file ``path``.

    Raises:
        UserError: A field is invalid. The message begins with ``path``, or with ``where`` if the
            error is in the schedule.
    """
    schedule = with_prefix(where, partial(schedule_from, document["schedule"]))
    return parse(RunConfig, {**with_places(document, path.parent), "schedule": schedule}, str(path))


PATH_FIELDS = ("data.text.paths", "data.tokens.path", "prefix_cache.folder")
"""The fields that hold paths. Studies may differ in them: equal data may be at another path."""


def with_places(document: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a copy of the plain data of a run or study in which :data:`PATH_FIELDS` are absolute.

    In ``document`` these paths are relative to ``folder``, the folder of its file. Invalid values
    stay as they are, so that the model reports them. So do URLs, except in lists of glob patterns.
    """
    placed = deepcopy(dict(document))
    for name in PATH_FIELDS:
        *groups, last = name.split(".")
        section: Any = placed
        for group in groups:
            section = section.get(group) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            continue
        given = section.get(last)
        if isinstance(given, str) and given and "://" not in given:  # no URL is a path; models refuse it
            section[last] = str(absolute_path(given, folder))
        elif isinstance(given, list):
            section[last] = [absolute_pattern(one, folder) for one in given]
    return placed


def absolute_path(name: str, folder: Path) -> Path:
    """Return the absolute path for a name in a file in ``folder``; ``~`` stands for the home directory."""
    return Path(os.path.abspath(folder / os.path.expanduser(name)))


def absolute_pattern(pattern: object, folder: Path) -> object:
    """Return an entry of a list of paths as an absolute glob pattern.

    A relative pattern is relative to ``folder``, whose name is escaped so that only the pattern
    itself has wildcards. A path that exists is taken as it is, even with wildcards in its name.
    ``~`` is expanded. Invalid values are returned unchanged, so that the model reports them.
    """
    if not isinstance(pattern, str) or not pattern:
        return pattern  # the model says what is wrong
    path = absolute_path(pattern, folder)
    if path.exists() or os.path.isabs(os.path.expanduser(pattern)):
        return str(path)
    return os.path.normpath(os.path.join(glob.escape(os.path.abspath(folder)), pattern))
