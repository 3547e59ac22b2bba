"""What the declarative kinds of space have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from nasgrow.shape import MAX_SIZE
from nasgrow.spaces.levels import ORDERS, Dim, Level, Rounding
from nasgrow.spaces.open_ended import OpenFinal
from nasgrow.spaces.settings import Choices, Plain, Range, Setting, Times, names
from nasgrow.strict import Strict

GRID = Range(low=0.05, high=0.7, step=0.05)
"""The times of a space that names none."""
Rise = tuple[Level, list[tuple[float, Level]]]
"""The level at the start, and those that follow with their times."""


Rounded = Literal["hidden", "mlp", "key", "value"]
"""The dimensions whose sizes are rounded."""

Multiple = Annotated[int, Field(ge=1, le=MAX_SIZE)]


def _all_alike(given: object) -> object:
    """One multiple for all dimensions, written out."""
    if isinstance(given, int) and not isinstance(given, bool):
        return dict.fromkeys(get_args(Rounded), given)
    return given


class Declarative(Strict, ABC):
    """A space in settings: how parameters become levels is the kind's, the rest is the same for all."""

    times: Times = GRID
    """When events may happen, as fractions of the budget."""
    order: Annotated[Choices, names(*ORDERS)] = Choices(["top"])
    """Where new layers are put: top, bottom, middle, or evenly between the old (interleave)."""
    round: Annotated[dict[Rounded, Multiple], BeforeValidator(_all_alike)] = Field(default_factory=dict)
    """The multiples that sizes below the final one are rounded to, by dimension, or one for all; 1 is none.

    Dimensions that are left out have multiples of 8 where the final size allows it, of 64 from 512 on.
    """
    training: dict[str, Setting] = Field(default_factory=dict)
    """Dotted fields of the training section, such as ``learning_rate.rewarm``, and their settings."""
    known: dict[str, dict[str, Plain]] = Field(default_factory=dict)
    """Points worth trying first, by name; a parameter left out has its first value."""
    final: OpenFinal | None = None
    """The final shapes to search as well; left out, every schedule ends at the study's final shape."""

    @property
    def rounding(self) -> Rounding:
        """How shares of a final size are rounded."""
        return Rounding(**self.round)

    @property
    @abstractmethod
    def starts(self) -> Mapping[Dim, Setting]:
        """The dimensions that may grow, and the shares they may start from."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Setting]:
        """The parameters that decide what grows and when."""

    @abstractmethod
    def shares(self, dim: Dim) -> set[float]:
        """Every share that a dimension may have at some time, where its start has finitely many."""

    @property
    def grows_alike(self) -> bool:
        """Whether equal final layers are equal at any time."""
        return True

    @abstractmethod
    def rise(self, values: Mapping[str, Any], layers: int) -> Rise:
        """The levels that parameters mean, for a final shape of so many layers."""
