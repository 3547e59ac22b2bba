"""Stand-ins for Optuna's trial, and the spaces that tests bind."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from nasgrow.config import TrainingConfig
from nasgrow.shape import Shape, Variant
from nasgrow.spaces import Choices, Point, Setting, Space, bind, load_space
from nasgrow.spaces.training import PEAK

FINAL = Shape.uniform(hidden=64, layers=4, mlp=256, heads=4, key=16, value=16)
FILES = sorted((Path(__file__).parents[2] / "search_spaces").glob("*.yaml"))


class RandomTrial:
    """Answers at random, and remembers what it was asked, in order."""

    def __init__(self, seed: int) -> None:
        self.asked: dict[str, Any] = {}
        self._random = random.Random(seed)

    def suggest_categorical(self, name: str, choices: Sequence[Any], /) -> Any:
        assert len(choices) > 1
        return self._keep(name, self._random.choice(choices), tuple(choices))

    def suggest_float(
        self, name: str, low: float, high: float, /, *, step: float | None = None, log: bool = False
    ) -> float:
        if step is not None:
            value = low + step * self._random.randrange(round((high - low) / step) + 1)
        else:
            value = _between(low, high, self._random.random(), log)
        self._keep(name, value, (low, high, step, log))
        return value

    def _keep(self, name: str, value: Any, distribution: object) -> Any:
        assert name not in self.asked, name
        self.asked[name] = distribution
        return value


class FixedTrial:
    """Answers with given values."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def suggest_categorical(self, name: str, choices: Sequence[Any], /) -> Any:
        assert self._values[name] in choices
        return self._values[name]

    def suggest_float(
        self, name: str, low: float, high: float, /, *, step: float | None = None, log: bool = False
    ) -> float:
        return float(self._values[name])


PLAIN = Variant(vocab=256, context=128)


def space(
    data: object, final: Shape = FINAL, variant: Variant = PLAIN, rates: Sequence[float] = (0.006,)
) -> Space:
    """A space of a study that tunes these learning rates."""
    tuned: dict[str, Setting] = {PEAK: Choices(list(rates))}
    return bind(load_space(data, "study.yaml: space", Path()), final, variant, TrainingConfig(), tuned)


def point(
    data: dict[str, Any], values: dict[str, Any], final: Shape = FINAL, variant: Variant = PLAIN
) -> Point:
    """The point of these values, and of the first ones for parameters that are not named."""
    bound = space({**data, "known": {"it": values}}, final, variant)
    return bound.sample(FixedTrial(bound.known["it"]))


def _between(low: float, high: float, share: float, logarithmic: bool) -> float:
    if logarithmic:
        return min(high, max(low, exp(log(low) + share * (log(high) - log(low)))))
    return low + share * (high - low)
