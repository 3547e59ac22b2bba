"""Transfer: make a study that tests a winning schedule at another final shape or budget.

The study compares that one schedule with training from scratch. Both get the same budget and the same
learning rates. It is an ordinary study, so the usual commands search, confirm and report it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nasgrow.config import Budget, RunConfig
from nasgrow.data import vocabulary
from nasgrow.errors import UserError
from nasgrow.experiments.scale_schedule import retarget
from nasgrow.flops import parameter_count, step_flops
from nasgrow.schedule import Schedule, shape_from
from nasgrow.shape import MAX_SIZE, MOST_HEADS, MOST_LAYERS, Layer, Shape, Variant, positive
from nasgrow.spaces.fixed import Fixed
from nasgrow.spaces.levels import DIMS
from nasgrow.spaces.training import PEAK
from nasgrow.strict import parse, read_mapping, with_prefix
from nasgrow.study.config import (
    STUDY,
    Baselines,
    Pruner,
    Sampler,
    StudyConfig,
    differences,
    dump_study,
    load_study,
)
from nasgrow.study.folders import check_folder
from nasgrow.training.atomic_files import write_text

MAX_TRANSFER_PARAMETERS = 1e12
"""The most parameters of the target shape."""

TRANSFER = "transfer.yaml"
"""The name of the study file that is written to the study's folder by default."""


@dataclass(frozen=True)
class Target:
    """The target of a transfer, as the user gives it.

    Attributes:
        final: The final shape: a file, or sizes; None if it stays the same or follows from ``scale``.
        scale: The factor that scales the final shape; None for none.
        flops: The budget in FLOPs; None if it is not given in FLOPs.
        tokens_per_parameter: The budget in tokens per parameter; None if it is not given in these.
            If both are None, the ratio of the transferred run.
        learning_rates: The learning rates to try. If empty, half, once and twice that of the
            transferred run, and that of :attr:`Source.final_rate`.
        name: The study's name; None to make one.
        budgets: The other budgets of fixed shapes, as multiples of the transfer's.
    """

    final: str | None
    scale: float | None
    flops: float | None
    tokens_per_parameter: float | None
    learning_rates: Sequence[float]
    name: str | None
    budgets: Sequence[float] = ()


@dataclass(frozen=True)
class Source:
    """The origin of a schedule.

    Attributes:
        title: Its file, or the study that found it.
        stem: The beginning of the transfer's name.
        gain: A sentence that says what the schedule gained at its origin.
        final_rate: The best learning rate of the final shape from scratch at its origin, if known.
    """

    title: str
    stem: str
    gain: str = "There is no report beside that file that says how much it gained there."
    final_rate: float | None = None


def transfer(config: RunConfig, target: Target, source: Source, where: str) -> tuple[StudyConfig, Schedule]:
    """Return the study of a transfer, and the schedule that it trains.

    Args:
        config: The run whose schedule is transferred.
        target: The target.
        source: The origin of the schedule.
        where: The run's file, the prefix of error messages.

    Raises:
        UserError: The run starts from a checkpoint, there is no growth to transfer, or the target
            is invalid.
    """
    old, training = config.schedule, config.training
    if config.start is not None:
        raise UserError(f"{where}: start: a run that starts from a checkpoint cannot be transferred")
    variant = config.variant.resolve(vocab=vocabulary(config.data.tokens), context=training.context)
    final, budget = _final(target, old.final), _budget(target, config, variant)
    if final == old.final and target.flops is None and target.tokens_per_parameter is None:
        raise UserError("it has that final shape already: give another one, or another budget")
    if not old.events:
        raise UserError(f"{where}: the schedule has no event: there is no growth to transfer")
    with_prefix("--final", lambda: variant.check(final))
    moved = retarget(old, final, variant)
    if not moved.events:
        raise UserError(f"{where}: nothing of its growth is left at {final}: all sizes round to the same")
    name = target.name or target_name(source.stem, final, budget.resolve(final, variant, training))
    note = f"Transferred from {source.title} (final shape {old.final}). {source.gain}"
    around = rates_around(training.learning_rate.peak, source.final_rate)
    rates = sorted(set(target.learning_rates)) or around
    moving = transferred(config, moved, budget, rates, target.budgets, name=name, note=note)
    return moving, moved


def _final(target: Target, old: Shape) -> Shape:
    if target.final is not None and target.scale is not None:
        raise UserError("give --final or --scale, not both")
    if target.scale is not None:
        return scaled(old, target.scale)
    return old if target.final is None else final_shape(target.final, old)


def _budget(target: Target, config: RunConfig, variant: Variant) -> Budget:
    """Return the budget that the user asks for; by default as many tokens per parameter as before."""
    given = {"flops": target.flops, "tokens_per_parameter": target.tokens_per_parameter}
    given = {name: number for name, number in given.items() if number is not None}
    return parse(Budget, given, "--budget, --tokens-per-parameter") if given else same_ratio(config, variant)


def final_shape(text: str, old: Shape, option: str = "--final") -> Shape:
    """Parse the shape of a command-line option: a file, or sizes such as ``hidden=128,layers=4``.

    A file holds a shape, alone or in its field ``final``.

    Args:
        text: The value of the option.
        old: The shape that has the sizes which ``text`` does not name.
        option: The option, the prefix of error messages.

    Raises:
        UserError: The file cannot be read, or the shape is invalid or too large.
    """
    if "=" not in text:
        data = read_mapping(Path(text))
        data = data.get("final", data)
        return with_prefix(text, lambda: shape_from(data, "final"))
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (piece.strip() for piece in part.partition("="))
        if name not in DIMS or not size.isdecimal() or len(size) > len(str(MAX_SIZE)):
            raise UserError(
                f"{option}: must be sizes of {', '.join(DIMS)} (hidden=128,layers=4), not {part!r}"
            )
        if name in sizes:
            raise UserError(f"{option}: {name} stands twice")
        sizes[name] = positive(int(size), f"{option}: {name}")
    return with_prefix(option, lambda: resized(old, sizes))


def resized(old: Shape, sizes: Mapping[str, int]) -> Shape:
    """Return a shape with other sizes; a given size is the same in all layers and heads.

    Each layer or head takes the sizes that are not given from the old one at the same relative
    place.

    Args:
        old: The shape that has the sizes which are not given.
        sizes: The given sizes, by the names in :data:`nasgrow.spaces.levels.DIMS`.

    Raises:
        UserError: The shape would be too large.
    """
    many = sizes.get("layers", len(old.layers))
    _check_size(old, sizes)
    layers = []
    for place in range(many):
        layer = old.layers[place * len(old.layers) // many]
        heads = sizes.get("heads", layer.head_count)
        kept = [layer.heads[index * layer.head_count // heads] for index in range(heads)]
        pairs = [(sizes.get("key", key), sizes.get("value", value)) for key, value in kept]
        layers.append(Layer.of_heads(sizes.get("mlp", layer.mlp), pairs))
    return replace(old, hidden=sizes.get("hidden", old.hidden), layers=tuple(layers))


def _check_size(old: Shape, sizes: Mapping[str, int]) -> None:
    """Raise ``UserError`` if a shape is far too large, before its list of layers is built."""
    hidden, many = sizes.get("hidden", old.hidden), sizes.get("layers", len(old.layers))
    positive(many, "layers", MOST_LAYERS)
    positive(max(sizes.get("heads", layer.head_count) for layer in old.layers), "heads", MOST_HEADS)
    heads = many * min(sizes.get("heads", layer.head_count) for layer in old.layers)
    mlp = many * min(sizes.get("mlp", layer.mlp) for layer in old.layers)
    least = 2 * hidden * (mlp + heads * (sizes.get("key", 1) + sizes.get("value", 1)))
    if least > MAX_TRANSFER_PARAMETERS:
        raise UserError(
            f"the shape would have more than {MAX_TRANSFER_PARAMETERS:.0e} parameters, the most allowed"
        )


def scaled(old: Shape, factor: float) -> Shape:
    """Scale hidden size, layers, MLP widths and number of heads by a factor.

    Sizes are rounded, and are at least 1. Key and value sizes stay.

    Raises:
        UserError: The factor is not a finite number above 0, or the shape would be too large.
    """
    if not 0 < factor < math.inf:
        raise UserError(f"--scale: must be a finite number above 0, not {factor}")
    if factor > MAX_TRANSFER_PARAMETERS:
        raise UserError(f"--scale: {factor:g} would take more than {MAX_TRANSFER_PARAMETERS:.0e} parameters")

    def times(size: int) -> int:
        return max(1, round(size * factor))

    def grown() -> Shape:
        wider = [
            resized(old.with_layers([layer]), {"mlp": times(layer.mlp), "heads": times(layer.head_count)})
            for layer in old.layers
        ]
        whole = old.with_layers(shape.layers[0] for shape in wider)
        return resized(whole, {"hidden": times(old.hidden), "layers": times(len(old.layers))})

    return with_prefix("--scale", grown)


def same_ratio(config: RunConfig, variant: Variant) -> Budget:
    """Return a run's budget as tokens per parameter of its final shape, to apply it to another.

    The tokens are those on which the budget would train the final shape from scratch.
    """
    if config.budget.tokens_per_parameter is not None:
        return config.budget
    final, training = config.schedule.final, config.training
    flops = config.budget.resolve(final, variant, training)
    step = step_flops(final, variant, training.sequences, muon=training.optimizer == "muon")
    tokens = flops / step * training.batch_tokens
    return Budget(tokens_per_parameter=float(f"{tokens / parameter_count(final, variant):.4g}"))


def rates_around(*peaks: float | None) -> list[float]:
    """Return half, once and twice each of these learning rates, ascending and without duplicates.

    None is skipped.
    """
    return sorted({float(f"{peak * factor:.6g}") for peak in peaks if peak for factor in (0.5, 1, 2)})


def target_name(origin: str, final: Shape, budget: int) -> str:
    """Return the default name of a transfer."""
    return f"{origin}-to-h{final.hidden}-N{len(final.layers)}-{budget:.3g}".replace("+", "")


def transferred(
    config: RunConfig,
    schedule: Schedule,
    budget: Budget,
    rates: Sequence[float],
    budgets: Sequence[float],
    *,
    name: str,
    note: str,
) -> StudyConfig:
    """Return the study that compares a schedule with its final shape from scratch.

    Args:
        config: The run that the schedule comes from, for all other settings.
        schedule: The schedule, at its new final shape.
        budget: The budget of every run.
        rates: The learning rates that both are tuned over.
        budgets: The other budgets of fixed shapes, as multiples of the budget.
        name: The study's name.
        note: A note for readers of the report.
    """
    space = Fixed(kind="fixed", schedules={"transferred": schedule})
    fields = {
        "name": name,
        "note": note,
        "final": schedule.final,
        "variant": config.variant,
        "budget": budget,
        "data": config.data,
        "training": config.training,
        "space": space.model_dump(mode="json"),
        "objectives": ["loss"],
        "sampler": Sampler(kind="random"),
        "pruner": Pruner(kind="none"),
        "trials": 2,
        "seeds": [config.seed],
        "tune": {PEAK: list(rates)},
        "baselines": Baselines(budgets=sorted(set(budgets))),
    }
    return parse(StudyConfig, fields, "transfer")


def write_transfer(out: Path | None, config: StudyConfig) -> Path:
    """Write the study file of a transfer, and return its path.

    An existing file is overwritten if it holds the same study, that is, if no field that can change
    results differs.

    Args:
        out: The file; by default ``runs/<name>/transfer.yaml``.
        config: The study.

    Raises:
        UserError: ``out`` or the study's folder holds another study, or the folder belongs to
            something that is not a study.
    """
    folder = Path("runs") / config.name
    check_folder(folder, STUDY, "choose another --name", [TRANSFER])
    path = out or folder / TRANSFER
    for known in (path, folder / STUDY):
        if known.exists() and (changed := differences(load_study(known), config)):
            raise UserError(
                f"{known}: is another study ({'; '.join(changed)}); choose another --name or --out"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, f"# Written by nasgrow transfer: a study file like any other.\n{dump_study(config)}")
    return path
