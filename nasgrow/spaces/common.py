"""The base class of declarative spaces, with the fields that all of them share."""

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
"""The default times of events."""
Rise = tuple[Level, list[tuple[float, Level]]]
"""The level at the start, and the later levels with their times as fractions of the budget."""


Rounded = Literal["hidden", "mlp", "key", "value"]
"""The dimensions whose sizes are rounded to multiples."""

Multiple = Annotated[int, Field(ge=1, le=MAX_SIZE)]


def _all_alike(given: object) -> object:
    """Expand one multiple into a mapping for all dimensions; return other data unchanged."""
    if isinstance(given, int) and not isinstance(given, bool):
        return dict.fromkeys(get_args(Rounded), given)
    return given


class Declarative(Strict, ABC):
    """A space that a file declares by its settings.

    Each kind of space decides how parameters become levels (:meth:`rise`); the rest is the same for all.
    """

    times: Times = GRID
    """When events may happen, as fractions of the budget."""
    order: Annotated[Choices, names(*ORDERS)] = Choices(["top"])
    """Where new layers are inserted: ``top``, ``bottom``, ``middle``, or evenly between the old
    ones (``interleave``)."""
    round: Annotated[dict[Rounded, Multiple], BeforeValidator(_all_alike)] = Field(default_factory=dict)
    """Sizes below the final one are rounded to these multiples, by dimension, or one for all dimensions.

    A multiple of 1 turns rounding off. For a dimension that is left out, it is the largest power of
    two that divides the final size and is at most a quarter of it, up to 8 (64 if the final size is
    512 or more).
    """
    training: dict[str, Setting] = Field(default_factory=dict)
    """Fields of the training section to search, by dotted name such as ``learning_rate.rewarm``."""
    known: dict[str, dict[str, Plain]] = Field(default_factory=dict)
    """Points to try first, by name. A parameter that is left out gets its first value; in a range,
    ``low``."""
    final: OpenFinal | None = None
    """Final shapes to search as well; by default every schedule ends at the study's final shape."""

    @property
    def rounding(self) -> Rounding:
        """How shares of a final size are rounded to whole sizes."""
        return Rounding(**self.round)

    @property
    @abstractmethod
    def starts(self) -> Mapping[Dim, Setting]:
        """The dimensions that may grow, and the shares of their final sizes that they may start from."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Setting]:
        """The settings of the parameters that decide what grows and when, by name."""

    @abstractmethod
    def shares(self, dim: Dim) -> set[float]:
        """Return every share that a dimension may have at some time.

        Of a continuous range of starts only the two ends count.
        """

    @property
    def grows_alike(self) -> bool:
        """Whether layers that are equal in the final shape are equal at all times."""
        return True

    @abstractmethod
    def rise(self, values: Mapping[str, Any], layers: int) -> Rise:
        """Decode parameters into the level at the start, and the later levels with their times.

        Args:
            values: The value of each parameter.
            layers: The number of layers of the final shape.
        """
