"""What the declarative kinds of space have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from nasgrow.search.spaces.final import OpenFinal
from nasgrow.search.spaces.levels import ORDERS, Dim, Level
from nasgrow.search.spaces.settings import Choices, Plain, Range, Setting, Times, names
from nasgrow.strict import Strict

GRID = Range(low=0.05, high=0.7, step=0.05)
"""The times of a space that names none."""
Rise = tuple[Level, list[tuple[float, Level]]]
"""The level at the start, and those that follow with their times."""


class Declarative(Strict, ABC):
    """A space in settings: how parameters become levels is the kind's, the rest is the same for all."""

    times: Times = GRID
    """When events may happen, as fractions of the budget."""
    order: Annotated[Choices, names(*ORDERS)] = Choices(["top"])
    """Where new layers are put: top, bottom, middle, or evenly between the old (interleave)."""
    training: dict[str, Setting] = Field(default_factory=dict)
    """Dotted fields of the training section, such as ``learning_rate.peak``, and their settings."""
    known: dict[str, dict[str, Plain]] = Field(default_factory=dict)
    """Points worth trying first, by name; a parameter left out has its first value."""
    final: OpenFinal | None = None
    """The final shapes to search as well; left out, every schedule ends at the study's final shape."""

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
