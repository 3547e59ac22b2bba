"""Transfer: a schedule that won, as a study of its own at another final shape or budget.

The study holds that schedule and no other, beside training from scratch. Both get the same budget and the
same learning rates, and the same commands judge it as judge any study.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nasgrow.config import Budget, RunConfig
from nasgrow.errors import UserError
from nasgrow.flops import parameter_count, step_flops
from nasgrow.schedule import Schedule, shape_from
from nasgrow.shape import LARGEST, MOST_HEADS, MOST_LAYERS, Layer, Shape, Variant, positive
from nasgrow.spaces.fixed import Fixed
from nasgrow.spaces.levels import DIMS
from nasgrow.spaces.training import PEAK
from nasgrow.strict import parse, read_mapping, with_prefix
from nasgrow.study.config import Pruner, Sampler, StudyConfig

MOST = 1e12
"""Parameters of the largest shape that is taken."""


def final_shape(text: str, old: Shape, option: str = "--final") -> Shape:
    """The shape that an option names: a file that holds one, or sizes such as ``hidden=128,layers=4``.

    A size that is not named stays as it is in ``old``.
    """
    if "=" not in text:
        data = read_mapping(Path(text))
        data = data.get("final", data)
        return with_prefix(text, lambda: shape_from(data, "final"))
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (piece.strip() for piece in part.partition("="))
        if name not in DIMS or not size.isdecimal() or len(size) > len(str(LARGEST)):
            raise UserError(
                f"{option}: must be sizes of {', '.join(DIMS)} (hidden=128,layers=4), not {part!r}"
            )
        if name in sizes:
            raise UserError(f"{option}: {name} stands twice")
        sizes[name] = positive(int(size), f"{option}: {name}")
    return with_prefix(option, lambda: resized(old, sizes))


def resized(old: Shape, sizes: Mapping[str, int]) -> Shape:
    """The shape with other sizes, in all layers and heads alike; new ones take after those at their place."""
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
    """Raise ``UserError`` if a shape is far beyond what could be trained, before its layers are listed."""
    hidden, many = sizes.get("hidden", old.hidden), sizes.get("layers", len(old.layers))
    positive(many, "layers", MOST_LAYERS)
    positive(max(sizes.get("heads", layer.head_count) for layer in old.layers), "heads", MOST_HEADS)
    heads = many * min(sizes.get("heads", layer.head_count) for layer in old.layers)
    mlp = many * min(sizes.get("mlp", layer.mlp) for layer in old.layers)
    least = 2 * hidden * (mlp + heads * (sizes.get("key", 1) + sizes.get("value", 1)))
    if least > MOST:
        raise UserError(f"the shape would have more than {MOST:.0e} parameters, the most that is taken")


def scaled(old: Shape, factor: float) -> Shape:
    """The shape with hidden size, layers, MLP widths and heads times ``factor``; heads keep their size."""
    if not 0 < factor < math.inf:
        raise UserError(f"--scale: must be a finite number above 0, not {factor}")
    if factor > MOST:
        raise UserError(f"--scale: {factor:g} would take more than {MOST:.0e} parameters")

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
    """The budget that gives another shape what a run gives its own: as many tokens for each parameter."""
    if config.budget.tokens_per_parameter is not None:
        return config.budget
    final, training = config.schedule.final, config.training
    flops = config.budget.resolve(final, variant, training)
    step = step_flops(final, variant, training.sequences, muon=training.optimizer == "muon")
    tokens = flops / step * training.batch_tokens
    return Budget(tokens_per_parameter=float(f"{tokens / parameter_count(final, variant):.4g}"))


def rates_around(*peaks: float | None) -> list[float]:
    """Half, once and twice each of these learning rates, none twice."""
    return sorted({float(f"{peak * factor:.6g}") for peak in peaks if peak for factor in (0.5, 1, 2)})


def target_name(origin: str, final: Shape, budget: int) -> str:
    """What a transfer is called unless it is given a name."""
    return f"{origin}-to-h{final.hidden}-N{len(final.layers)}-{budget:.3g}".replace("+", "")


def transferred(
    config: RunConfig, schedule: Schedule, budget: Budget, rates: Sequence[float], *, name: str, note: str
) -> StudyConfig:
    """The study of a schedule beside its final shape from scratch.

    Args:
        config: The run that the schedule comes from, for all that stays the same.
        schedule: The schedule as it is to be trained.
        budget: Of every run.
        rates: Learning rates that both are tuned over.
        name: The study's.
        note: What a reader of its report should know.
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
    }
    return parse(StudyConfig, fields, "transfer")
