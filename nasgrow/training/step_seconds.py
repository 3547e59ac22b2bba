"""The seconds of a training step by shape, fitted to a few shapes that were measured on a device.

FLOPs alone do not tell them: of two shapes with the same FLOPs, the deeper and narrower one may take half as
long again. So a step takes a fixed time, and a time for each layer (whose kernels have to be launched), for
each activation that is written, for each FLOP and for each parameter (which the optimizer updates).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter

from nasgrow.config import TrainingConfig
from nasgrow.flops import parameter_count, step_flops
from nasgrow.schedule import Stage
from nasgrow.shape import Shape, Variant
from nasgrow.training.budget_steps import evaluation_steps
from nasgrow.training.run import Run

Second = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Coefficients = tuple[Second, Second, Second, Second, Second]
"""Seconds for each of the :func:`quantities` of a step."""


@dataclass(frozen=True)
class Timing:
    """The measurement of one shape.

    Attributes:
        shape: The shape, in words.
        batch_tokens: Tokens of a step.
        step: Seconds of a step.
        evaluation: Seconds of evaluating as many tokens.
    """

    shape: str
    batch_tokens: int
    step: float
    evaluation: float


@dataclass(frozen=True)
class StepSeconds:
    """A fitted model of the seconds that a step takes on a device, for any shape.

    Attributes:
        device: The device, and its number of threads.
        step: The coefficients of a training step.
        evaluation: The coefficients of evaluating as many tokens as a step has.
        timings: The measurements.
    """

    device: str
    step: Coefficients
    evaluation: Coefficients
    timings: tuple[Timing, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the model as plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> StepSeconds:
        """Return the model that :meth:`to_json` wrote.

        Raises:
            ValueError: The data is invalid.
        """
        return TypeAdapter(StepSeconds).validate_python(data)

    def of(self, shape: Shape, variant: Variant, training: TrainingConfig) -> float:
        """Return the seconds of one training step."""
        return float(np.dot(self.step, quantities(shape, variant, training)))

    def of_stage(self, run: Run, stage: Stage) -> float:
        """Return the seconds of all steps of a stage and of the event before it.

        A FLOP of the event is assumed to take as long as a FLOP of a step.
        """
        *small, step = (self.of(stage.shape, run.variant, kind) for kind in run.config.training.kinds)
        ramp = stage.ramp_steps * sum(small)
        return ramp + step * (stage.steps - stage.ramp_steps + stage.event_flops / stage.step_flops)

    def of_run(self, run: Run) -> float:
        """Return the seconds of all steps and events of a run, without its evaluations."""
        return sum(self.of_stage(run, stage) for stage in run.stages)

    def elapsed(self, run: Run) -> Callable[[int], float]:
        """Return a function from charged FLOPs to the seconds of a run until then.

        The seconds include evaluations: those due, those at events, and those after the last step.
        """
        training, stages = run.config.training, run.stages
        steps = [[self.of(stage.shape, run.variant, kind) for kind in training.kinds] for stage in stages]
        looks: Counter[tuple[int, int]] = Counter()  # tokens evaluated, by FLOPs charged and stage
        for step in evaluation_steps(run):
            place = next(place for place, stage in enumerate(stages) if step <= stage.end)
            looks[stages[place].charged(step), place] += training.evaluation_tokens
        for place, stage in enumerate(stages[1:], 1):
            looks[stage.flops_before, place] += 2 * training.evaluation_tokens  # before and after an event
        last = training.evaluation_tokens + training.final_tokens
        looks[stages[-1].charged(stages[-1].end), len(stages) - 1] += last
        each = [
            float(np.dot(self.evaluation, quantities(stage.shape, run.variant, training)))
            / training.batch_tokens
            for stage in stages
        ]

        def seconds(flops: int) -> float:
            total = 0.0
            for stage, (*small, step) in zip(stages, steps, strict=True):
                begun = stage.flops_before - stage.event_flops
                trained = max(0, min(flops, stage.flops_before + stage.flops) - begun)
                if stage.ramp_steps:
                    ramp = max(0, min(trained - stage.event_flops, stage.ramp_steps * stage.ramp_flops))
                    total += ramp / stage.ramp_flops * sum(small)
                    trained -= ramp
                total += trained / stage.step_flops * step
            for (charged, place), tokens in looks.items():
                if charged <= flops:
                    total += tokens * each[place]
            return total

        return seconds


def quantities(shape: Shape, variant: Variant, training: TrainingConfig) -> tuple[float, ...]:
    """Return the regressors of the seconds of a step: 1, layers, activations, FLOPs, parameters."""
    activations = variant.vocab + sum(
        6 * shape.hidden
        + (3 if variant.gated else 2) * layer.mlp
        + sum(
            group.count * variant.queries * (2 * group.key + 2 * group.value + training.context)
            for group in layer.groups
        )
        for layer in shape.layers
    )
    muon, read = training.optimizer == "muon", variant.with_context(training.context)
    return (
        1.0,
        float(len(shape.layers)),
        float(training.batch_tokens * activations),
        float(step_flops(shape, read, training.sequences, muon=muon)),
        float(parameter_count(shape, variant)),
    )


def fit(rows: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> Coefficients:
    """Fit the seconds for each quantity by least squares of the relative error; none is negative.

    Args:
        rows: The :func:`quantities` of each measured step.
        seconds: The seconds of each.
    """
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    relative = np.array(rows) / np.array(seconds)[:, None]
    scale = relative.max(axis=0)
    found, _ = nnls(relative / scale, np.ones(len(seconds)))
    one, layer, activation, flop, parameter = (float(value) for value in found / scale)
    return one, layer, activation, flop, parameter
