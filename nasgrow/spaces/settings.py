"""Settings: the values that one parameter of a space may take.

A setting is a list of values, or a range of numbers. A list of one value is fixed: no trial is asked for it.
Every setting has one name and one Optuna distribution for the life of a study.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from math import inf, log
from typing import Annotated, Any, Literal, Protocol, Self, TypeAlias

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    Tag,
    model_validator,
)

from nasgrow.errors import UserError
from nasgrow.strict import Strict

MAX_RANGE = 10_000
"""The most values of a range with a step, and of a list, because some functions visit every value."""

Scalar: TypeAlias = bool | int | float | str | None


def _finite(value: object) -> object:
    """Return the value if a setting may hold it, else raise ``UserError``.

    Pydantic's message for the union of types would only say that the value is not a boolean.
    """
    if not isinstance(value, Scalar):
        raise UserError("must be a number, a text, true, false or null")
    if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
        raise UserError("must be a finite number")
    return value


def _number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError("must be a number")
    return _finite(value)


Plain = Annotated[Scalar, BeforeValidator(_finite)]
"""One value of a setting, as a file gives it."""
Number = Annotated[int | float, BeforeValidator(_number)]
"""A finite number, as a file gives it."""


class Suggests(Protocol):
    """The part of Optuna's ``Trial`` that spaces use."""

    def suggest_categorical(self, name: str, choices: Sequence[Scalar], /) -> Any:
        """Return one of the choices."""

    def suggest_float(
        self, name: str, low: float, high: float, /, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number between low and high, both included."""


class Given:
    """A trial with fixed parameters: each suggestion is the given value.

    A parameter that is not given raises ``KeyError``.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def suggest_categorical(self, name: str, choices: Sequence[Scalar], /) -> Any:
        """Return the given value of this name."""
        return self._values[name]

    def suggest_float(
        self, name: str, low: float, high: float, /, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return the given value of this name."""
        return float(self._values[name])


class Choices(RootModel[Annotated[list[Plain], Field(min_length=1, max_length=MAX_RANGE)]]):
    """A list of values without order between them."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        seen: set[Scalar] = set()
        for value in self.root:
            if value in seen:
                raise UserError(f"{value!r} stands twice")
            seen.add(value)
        return self

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # the values, not the fields of a model
        return iter(self.root)

    @property
    def values(self) -> Sequence[Any]:
        """Every value."""
        return self.root

    @property
    def count(self) -> float:
        """The number of values."""
        return len(self.root)

    def suggest(self, name: str, trial: Suggests) -> Any:
        """Ask a trial for a value, unless there is only one."""
        return self.root[0] if len(self.root) == 1 else trial.suggest_categorical(name, self.root)

    def draw(self, count: int, rng: np.random.Generator) -> list[Any]:
        """Draw random values uniformly."""
        return [self.root[place] for place in rng.integers(len(self.root), size=count)]

    def accept(self, value: object) -> Any:
        """Return the equal value of the list; raise ``UserError`` if there is none."""
        for choice in self:
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return choice
        raise UserError(f"must be one of {', '.join(map(str, self))}, not {value!r}")


class Range(Strict):
    """Numbers from ``low`` to ``high``: a grid of step ``step``, or continuous, uniform or log-uniform.

    If ``low`` and ``step`` are whole numbers, so are the values.
    """

    low: Number
    high: Number
    step: Number | None = None
    log: bool = False

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.low >= self.high:
            raise UserError("low must be below high (one value alone is a list)")
        if self.log and (self.step is not None or self.low <= 0):
            raise UserError("a range with log has no step, and begins above 0")
        if self.step is not None:
            if self.step <= 0:
                raise UserError("step must be above 0")
            if (self.high - self.low) / MAX_RANGE >= self.step:
                raise UserError(f"low to high must be at most {MAX_RANGE:,} values")
            if (Decimal(str(self.high)) - Decimal(str(self.low))) % Decimal(str(self.step)):
                raise UserError("low to high must be a whole number of steps")
        return self

    @property
    def values(self) -> Sequence[Any]:
        """Every value of a grid; the two ends of a continuous range."""
        if self.step is None:
            return (self.low, self.high)
        return [self._at(index) for index in range(int(self.count))]

    @property
    def count(self) -> float:
        """The number of values; infinite for a continuous range."""
        return inf if self.step is None else self._index(self.high) + 1

    def suggest(self, name: str, trial: Suggests) -> Any:
        """Ask a trial for a value."""
        value = trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)
        return self.accept(value)

    def draw(self, count: int, rng: np.random.Generator) -> list[Any]:
        """Draw random values, uniformly or log-uniformly."""
        if self.step is not None:
            return [self._at(int(place)) for place in rng.integers(int(self.count), size=count)]
        if self.log:
            drawn = np.exp(rng.uniform(log(self.low), log(self.high), count))
            return [float(one) for one in np.clip(drawn, self.low, self.high)]
        return [float(one) for one in rng.uniform(self.low, self.high, count)]

    def accept(self, value: object) -> Any:
        """Return the value, on a grid without its rounding error.

        Raises:
            UserError: It is no number, out of range, or between two points of the grid.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"must be a number, not {value!r}")
        exact = value if self.step is None else self._at(self._index(value))
        if not self.low <= exact <= self.high:
            raise UserError(f"must be between {self.low} and {self.high}, not {value!r}")
        if self.step is not None and abs(exact - value) > 1e-6 * self.step:
            raise UserError(f"must be {self.low} and a multiple of the step {self.step}, not {value!r}")
        return exact

    def _index(self, value: float) -> int:
        assert self.step is not None
        return round((value - self.low) / self.step)

    def _at(self, index: int) -> int | float:
        """Return the number at an index of the grid: 0.15, where adding floats gives 0.15000000000000002."""
        assert self.step is not None
        return _on_grid(self.low, self.step, index)


@lru_cache(2 * MAX_RANGE, typed=True)  # 1 is not 1.0 here
def _on_grid(low: float, step: float, index: int) -> int | float:
    if isinstance(low, int) and isinstance(step, int):
        return low + index * step
    return float(Decimal(str(low)) + index * Decimal(str(step)))


def _form(data: object) -> Literal["list", "range"] | None:
    if isinstance(data, list | Choices):
        return "list"
    return "range" if isinstance(data, dict | Range) else None


Setting = Annotated[
    Annotated[Choices, Tag("list")] | Annotated[Range, Tag("range")],
    Discriminator(
        _form,
        custom_error_type="setting",
        custom_error_message="must be a list of values, {low, high, step} or {low, high, log: true}",
    ),
]


def _numbers(setting: Setting) -> Sequence[float]:
    for value in setting.values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError("must hold numbers only")
    return setting.values


def _shares(setting: Setting) -> Setting:
    numbers = _numbers(setting)
    if not all(0 < number <= 1 for number in numbers):
        raise UserError("must hold shares above 0 and at most 1")
    if 1 not in numbers:
        raise UserError("must hold 1, so that training without growth is in the space")
    return setting


def _factors(setting: Setting) -> Setting:
    if not all(number > 1 for number in _numbers(setting)):
        raise UserError("must hold factors above 1")
    return setting


def _multiples(setting: Setting) -> Setting:
    if not all(number > 0 for number in _numbers(setting)) or setting.count == inf:
        raise UserError("must hold numbers above 0, in a list or a range with a step")
    return setting


def _sizes(setting: Setting) -> Setting:
    whole = all(isinstance(number, int) and number > 0 for number in _numbers(setting))
    if not whole or setting.count == inf:
        raise UserError("must hold positive whole numbers, in a list or a range with a step")
    return setting


def _times(times: Range) -> Range:
    if times.step is None or times.low <= 0 or times.high > 1:
        raise UserError("must be a range with a step, between 0 and 1")
    return times


def names(*allowed: str) -> AfterValidator:
    """Return a validator of lists that may only hold these names."""

    def check(setting: Choices) -> Choices:
        for value in setting:
            if value not in allowed:
                raise UserError(f"must hold some of {', '.join(allowed)}")
        return setting

    return AfterValidator(check)


Shares = Annotated[Setting, AfterValidator(_shares)]
"""Shares of a final size, including 1."""
Factors = Annotated[Setting, AfterValidator(_factors)]
"""Factors above 1 that sizes are multiplied by."""
Multiples = Annotated[Setting, AfterValidator(_multiples)]
"""Positive numbers, in a list or a range with a step."""
Sizes = Annotated[Setting, AfterValidator(_sizes)]
"""Positive whole numbers, in a list or a range with a step."""
Times = Annotated[Range, AfterValidator(_times)]
"""A grid of fractions of the budget. An event at 1 never happens."""
