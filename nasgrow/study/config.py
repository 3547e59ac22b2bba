"""The study file: what is searched, under which budget, against which baselines.

A study file may name another file as its space. Reading resolves it: the space and every default are filled
in. nasgrow writes the resolved form beside the results; it is a valid study file too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, Field, field_validator, model_validator

from nasgrow.config import (
    PATH_FIELDS,
    Budget,
    CheckpointStart,
    DataConfig,
    RunConfig,
    ShapeField,
    TrainingConfig,
    VariantConfig,
    with_places,
)
from nasgrow.errors import UserError
from nasgrow.huggingface.start import with_checkpoint
from nasgrow.redact import has_password
from nasgrow.schedule import Schedule, shape_from
from nasgrow.spaces import load_space
from nasgrow.spaces.training import BATCH, PEAK, Tunable
from nasgrow.strict import Strict, did_you_mean, parse, parse_mapping, plain_name, read_mapping, with_prefix

STUDY = "study.yaml"
"""The resolved study file in a study's folder."""

DATA = "data.json"
"""The file in a study's folder that describes its data: fingerprint, tokens and documents by split, and the
share of the test text that is in the training text too (``overlap``)."""

PREFIXES = "prefixes"
"""The folder of the prefix cache, beside the folders of the studies that share it."""

Objective = Literal["loss", "parameters", "inference_flops", "seconds"]

ELASTIC = ("trials", "total_flops", "hours", "workers", "resources", "prefix_cache", "note")
"""Fields that may change between two launches of a study: they change no result, only how many there are."""


TRACKERS = "training.trackers"
"""A training field that may change between two launches too."""


class Sampler(Strict):
    """How the next schedule is chosen."""

    kind: Literal["tree", "tpe", "random", "grid", "gp", "nsga-ii"] = "tpe"
    """``tree`` is nasgrow's own; ``grid`` trains every point; the others are Optuna's samplers.

    ``tree`` needs one objective, ``nsga-ii`` two. The study chooses if the file does not.
    """
    startup: Annotated[int, Field(ge=1, le=10_000)] = 10
    """How many trials the sampler starts before it learns from losses: a tree far apart from each
    other, the others at random. For ``nsga-ii``, its population."""

    @model_validator(mode="before")
    @classmethod
    def _few_for_a_tree(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("kind") == "tree":
            return {"startup": 3, **data}
        return data


class Pruner(Strict):
    """When a trial is paused."""

    kind: Literal["none", "asha"] = "asha"
    """``asha`` pauses trials at rungs, and resumes those that turn out to be among the best;
    ``none`` trains every trial to its end, except that a tree pauses trials itself. The study
    chooses if the file does not."""
    after: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """ASHA's first rung: it pauses no trial before this fraction of the budget."""
    recovery: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """ASHA pauses no trial within this fraction of the budget after one of its events, because the
    loss tells little until the model has recovered. A tree does the same, always with the
    default."""


Factor = Annotated[str, Field(pattern=r"^x[0-9]*\.?[0-9]+(e-?[0-9]+)?$")]
"""A multiple of the study's own value, such as ``x0.5``."""

Tuned = Annotated[list[Annotated[float, Field(ge=0)] | Factor], Field(min_length=1, max_length=100)]
"""The values of a tuned field: numbers, or multiples of the study's own value."""


def _with_defaults(tune: dict[Tunable, list[float | str]]) -> dict[Tunable, list[float | str]]:
    return {PEAK: ["x0.25", "x0.5", "x1", "x2", "x4"], BATCH: ["x1"], **tune}


Tune = Annotated[
    dict[Tunable, Tuned],
    AfterValidator(_with_defaults),
    Field(validate_default=True),
]
"""The tuned fields and their values, the same for schedules and fixed shapes."""


class Baselines(Strict):
    """What schedules are compared with: the final shape, and the best fixed shape searched."""

    compute: Annotated[float, Field(ge=0, le=16)] = 1.0
    """How much compute to spend on the search of fixed shapes, as a multiple of what the search of
    schedules executed. Below 1, a report names it as a weakness."""
    budgets: list[Annotated[float, Field(ge=0.05, le=16)]] = Field(
        default_factory=lambda: [0.5, 0.7, 1.4, 2.0]
    )
    """Other budgets, as multiples of the study's, at which ``confirm`` trains the final shape and
    the best fixed shapes. From their losses a report reads off how much compute growth saves."""

    @field_validator("budgets")
    @classmethod
    def _others(cls, budgets: list[float]) -> list[float]:
        if 1 in budgets or len(set(budgets)) < len(budgets):
            raise UserError(f"budgets must differ from each other and from 1, not {budgets}")
        return budgets


class PrefixCacheConfig(Strict):
    """The prefix cache keeps training states, so that runs that begin alike train this part once."""

    gigabytes: Annotated[float, Field(gt=0)] = 5.0
    """The cache's size on disk. All studies whose folders lie side by side share it; beyond this
    size the least valuable states are evicted."""
    share: Annotated[float, Field(gt=0)] = 0.01
    """A state is cached if writing it takes at most this share of the time of training it from the
    state before."""
    folder: str | None = None
    """The folder of the cache, relative to this file's folder; null: ``prefixes`` beside the
    studies' folders."""

    @field_validator("folder")
    @classmethod
    def _a_place(cls, folder: str | None) -> str | None:
        if folder == "":
            raise UserError("must be a path, not empty: null is the folder beside the studies'")
        if folder is not None and "://" in folder:
            raise UserError("must be a path on a file system that all workers share, not a URL")
        return folder

    def check(self) -> None:
        """Raise ``UserError`` if the folder is a file."""
        if self.folder is not None and Path(self.folder).is_file():
            raise UserError(f"prefix_cache.folder: must be a folder, not the file {self.folder!r}")


class Resources(Strict):
    """What one trial needs of a machine. Only the number of threads can change results, by rounding."""

    cpus: Annotated[float, Field(gt=0, le=1024)] | None = None
    """Cores. null: local workers divide the cores of the machine evenly; with Ray, one."""
    gpus: Annotated[float, Field(ge=0, le=1)] | None = None
    """A GPU, or a share of one, so that several trials train on it. null: one, if there are any."""
    gigabytes: Annotated[float, Field(gt=0)] | None = None
    """Memory that Ray reserves for a trial. null: Ray does not look at memory."""


class StudyConfig(Strict):
    """A study file."""

    name: str
    """The name of the study, and of its folder."""
    note: str | None = None
    """A note for readers of the report: where the study comes from, what it is for."""
    final: ShapeField
    """The shape that every schedule ends at, as in a schedule file."""
    start: CheckpointStart | None = None
    """The checkpoint that every run starts from: ``{from: FOLDER}``. null: fresh weights."""
    variant: VariantConfig = VariantConfig()
    budget: Budget = Budget(flops=1e12)
    """What every run may spend: FLOPs, tokens or seconds."""
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    """How every run trains. What the space searches comes on top."""
    space: str | dict[str, Any]
    """The name of a built-in space, the path of a space file (relative to this file's folder), the
    space itself, ``{from: ...}`` to change another one, or a Python function."""
    objectives: Annotated[
        list[Objective], Field(min_length=1, max_length=2, default_factory=lambda: ["loss"])
    ]
    """What to minimise: the loss, alone or with the parameters of the final shape, its inference
    FLOPs, or the seconds of training."""
    sampler: Sampler = Sampler()
    pruner: Pruner = Pruner()
    trials: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """How many schedules to try. A tree counts only those that it trains to their end. At least one
    of ``trials``, ``total_flops`` and ``hours`` must be given, except with the sampler ``grid``."""
    total_flops: Annotated[float, Field(gt=0)] | None = None
    """The search starts no further trial once its trials have executed this many FLOPs."""
    hours: Annotated[float, Field(gt=0)] | None = None
    """The search starts no further trial once its trials have trained this long, added up over
    workers."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field(min_length=1, default_factory=lambda: [0])
    """Every schedule and every baseline is trained with each of these seeds; its loss is the
    mean."""
    tune: Tune = Field(default_factory=dict)
    """The values to tune over, for schedules and fixed shapes alike: numbers, or multiples of the
    study's own value (``x2``). A single value is not tuned. If the best value is the first or the
    last, tuning goes beyond the list."""
    baselines: Baselines = Baselines()
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """How many trials train at once. null: as many as the GPUs have room for, or else the cores."""
    resources: Resources = Resources()
    """What one trial needs of a machine."""
    prefix_cache: PrefixCacheConfig | None = PrefixCacheConfig()
    """The cache of training states that runs share. null: every run trains by itself, to the same
    results."""
    storage: str | None = None
    """The URL of a database. null: SQLite in the study's folder. A URL with a password belongs in
    the variable ``NASGROW_STORAGE``."""

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if name == PREFIXES:
            raise UserError(f"{PREFIXES!r} is the folder of the prefix cache: choose another name")
        return plain_name(name)

    @field_validator("storage")
    @classmethod
    def _a_database(cls, url: str | None) -> str | None:
        if url == "":
            raise UserError(
                "must be a database URL such as postgresql://host/name, not empty: null is SQLite in "
                "the study's folder"
            )
        if url is not None and has_password(url):
            raise UserError("a password does not belong in a file: set NASGROW_STORAGE to the complete URL")
        return url

    @model_validator(mode="before")
    @classmethod
    def _chosen(cls, data: Any) -> Any:
        """Choose the sampler and the pruner where the file does not.

        The sampler is a tree if a tree can search the study, the loss is the only objective, and
        the file names no pruner; otherwise it is TPE. The pruner is ASHA, but none for a tree or
        two objectives.
        """
        if not isinstance(data, dict):
            return data
        alone = data.get("objectives", ["loss"]) == ["loss"]
        sampler, pruner = (_kind(data.get(name, {})) for name in ("sampler", "pruner"))
        sampler = sampler or ("tree" if alone and pruner is None and _grows_trees(data) else "tpe")
        pruner = pruner or ("asha" if alone and sampler != "tree" else "none")
        kinds = {"sampler": sampler, "pruner": pruner}
        return {**data, **{name: _with_kind(data.get(name, {}), kind) for name, kind in kinds.items()}}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        endless = self.trials is None and self.total_flops is None and self.hours is None
        if endless and self.sampler.kind != "grid":
            raise UserError("give at least one of trials, total_flops, hours")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"seeds must differ, not {self.seeds}")
        if self.objectives[0] != "loss" or len(set(self.objectives)) < len(self.objectives):
            raise UserError("objectives are loss, alone or with parameters, inference_flops or seconds")
        if "seconds" in self.objectives and self.budget.seconds is not None:
            raise UserError("objectives: every schedule takes the same seconds if the budget is in seconds")
        if len(self.objectives) == 2 and self.pruner.kind != "none":
            raise UserError("with two objectives no trial can be compared early: pruner.kind must be none")
        if (self.sampler.kind == "nsga-ii") > (len(self.objectives) == 2):
            raise UserError("sampler.kind nsga-ii needs two objectives")
        if self.sampler.kind == "tree" and self.pruner.kind != "none":
            raise UserError("sampler.kind tree pauses trials itself: pruner.kind must be none")
        if self.sampler.kind == "tree" and len(self.objectives) == 2:
            raise UserError("sampler.kind tree needs one objective")
        return self

    def as_run(self) -> RunConfig:
        """Return the run of the final shape from scratch, with the study's first seed."""
        return RunConfig(
            schedule=Schedule(self.final),
            start=self.start,
            budget=self.budget,
            data=self.data,
            variant=self.variant,
            training=self.training,
            seed=self.seeds[0],
        )


def _kind(given: object) -> Any:
    """Return the kind of a sampler or pruner as a file gives it; None if the file gives no kind."""
    return given.get("kind") if isinstance(given, dict) else getattr(given, "kind", None)


def _with_kind(given: object, kind: str) -> object:
    return {"kind": kind, **given} if isinstance(given, dict) else given


def _grows_trees(data: Mapping[str, Any]) -> bool:
    """Return whether a tree can search a study.

    All points must have the same parameters, and there must be an evaluation at each fifth of the budget.
    """
    space, training = data.get("space"), data.get("training", {})
    default = TrainingConfig.model_fields["evaluations"].default
    given = getattr(training, "evaluations", None)
    if isinstance(training, dict):
        given = training.get("evaluations", default)
    return isinstance(space, dict) and "python" not in space and isinstance(given, int) and given % 5 == 0


def load_study(path: Path, begun: Path | None = None) -> StudyConfig:
    """Read a study file and fill in its defaults.

    Args:
        path: The study file, or the folder of a study, which holds its file.
        begun: The study's folder, if the study has begun. If the file at ``path`` names no sampler or pruner,
            the study keeps those that it began with, even if defaults have changed since.

    Raises:
        UserError: The file cannot be read, is invalid, or sets a field that has no effect.
    """
    file = path / STUDY if path.is_dir() else path
    data = read_mapping(file)
    before = read_mapping(begun / STUDY) if begun is not None else data
    chosen = {name: value for name, value in before.items() if name in ("sampler", "pruner")}
    config = study_from({**chosen, **data}, file)
    if not path.is_dir():  # the resolved file has every field, including those that the space overrides
        with_prefix(str(file), partial(_check_overridden, config, data))
    return config


def study_from(data: Mapping[str, Any], file: Path) -> StudyConfig:
    """Resolve the data of a study file.

    Args:
        data: The data.
        file: The file, which need not exist. Paths in the data are relative to its folder, errors
            begin with its name, and the study has its name by default.

    Raises:
        UserError: The data is invalid, or a file that it names is.
    """
    if "final" not in data or "space" not in data:
        for name in data:
            if name not in StudyConfig.model_fields and get_close_matches(str(name), ("final", "space"), n=1):
                meant = did_you_mean(str(name), ("final", "space"))
                raise UserError(f"{file}: {name}: there is no such field{meant}")
        raise UserError(
            f"{file}: is not a study: it must have the fields final (the shape) and space (what is searched)"
        )
    space = load_space(data["space"], f"{file}: space", file.parent).model_dump(mode="json")
    final = with_prefix(str(file), partial(shape_from, data["final"], "final"))
    placed = with_places(data, file.parent)
    said = {"name": file.stem, **placed, "final": final, "space": space}
    return parse(StudyConfig, with_checkpoint(said, str(file)), str(file))


def _check_overridden(config: StudyConfig, data: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if a file sets a field that has no effect."""
    said = _flat(data.get("training", {}))
    searched = config.space.get("training", {}) if isinstance(config.space, dict) else {}
    values = _flat(config.training.model_dump(mode="json"))
    usual = _flat(TrainingConfig().model_dump(mode="json"))
    for name, setting in searched.items():
        if name not in said or values[name] == usual[name]:
            continue
        if isinstance(setting, list) and values[name] not in setting:
            raise UserError(
                f"training.{name}: {values[name]!r} would have no effect, because the space searches "
                f"{setting}: leave it out, or override the space: {{from: ..., training: {{{name}: [...]}}}}"
            )
    if config.pruner.kind == "none":
        _check_unused(config.pruner, Pruner(kind="none"), "pruner", "no trial is pruned")
    if config.sampler.kind in ("random", "grid"):
        _check_unused(config.sampler, Sampler(kind=config.sampler.kind), "sampler", "it does not learn")


def _check_unused(said: Strict, usual: Strict, where: str, why: str) -> None:
    for name, value in said:
        if value != getattr(usual, name):
            kind = getattr(said, "kind")  # noqa: B009 - both have one
            raise UserError(f"{where}.{name}: {value!r} would have no effect with kind {kind}: {why}")


def parse_study(text: str, where: str) -> StudyConfig:
    """Parse the text that :func:`dump_study` returned; error messages begin with ``where``."""
    return parse(StudyConfig, with_prefix(where, partial(parse_mapping, text)), where)


def dump_study(config: StudyConfig) -> str:
    """Return the text of a study file with its defaults filled in, which reads as the same study.

    Two training fields are left out at their defaults: ``ramp`` and ``learning_rate.rewarm_scope``.
    """
    said = config.model_dump(mode="json")
    said["training"]["trackers"] = list(config.training.trackers)  # model_dump leaves them out
    return yaml.safe_dump(said, sort_keys=False, allow_unicode=True)


def differences(old: StudyConfig, new: StudyConfig) -> list[str]:
    """Return the changes between two versions of a study that can change results, a line for each field."""
    before, after = _decisive_fields(old), _decisive_fields(new)
    return [
        f"{name}: {before.get(name)!r} became {after.get(name)!r}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _decisive_fields(config: StudyConfig) -> dict[str, object]:
    """Return the fields of a study that can change results, by their dotted names."""
    return {
        name: value
        for name, value in fields_of(config).items()
        if name.split(".")[0] not in ELASTIC and name not in (*PATH_FIELDS, TRACKERS)
    }


def fields_of(config: StudyConfig) -> dict[str, object]:
    """Return the fields that :func:`dump_study` writes, by their dotted names."""
    return _flat(yaml.safe_load(dump_study(config)))


def _flat(data: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(data, Mapping):
        return {prefix: data}
    found: dict[str, object] = {}
    for key, value in data.items():
        found |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def worker_count(config: StudyConfig, given: int | None, devices: int) -> int:
    """Return the number of workers: as asked for, else as many as fit on the GPUs, else on the cores.

    Args:
        config: The study. Its ``workers`` field counts if ``given`` is None.
        given: The number from the command line; None if it has none.
        devices: The number of GPUs.
    """
    cpus, gpus = config.resources.cpus or 1.0, config.resources.gpus
    on_gpus = 0 if gpus == 0 else devices * int(1 / (gpus or 1.0) + 1e-9)  # no trial is split between GPUs
    return given or config.workers or on_gpus or max(1, int(core_count() / cpus))


def thread_count(resources: Resources, workers: int) -> int:
    """Return the number of threads of each worker: as asked for, else the machine's cores divided equally."""
    return max(1, int(resources.cpus or core_count() // workers))


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
