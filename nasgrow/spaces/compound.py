"""Compound spaces: all dimensions grow together, by equal factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from nasgrow.spaces.common import Declarative, Rise
from nasgrow.spaces.levels import DIMS, Dim, Level
from nasgrow.spaces.settings import Setting, Shares


class Compound(Declarative):
    """All dimensions have one share, which rises to 1 by equal factors, once at each distinct time."""

    kind: Literal["compound"]
    dims: Annotated[list[Dim], Field(min_length=1, default_factory=lambda: list(DIMS))]
    """The dimensions that grow."""
    start: Shares
    """The share of every final size to start from."""
    events: Annotated[int, Field(gt=0, le=100)] = 2
    """The largest number of events; equal times are one event."""

    @property
    def starts(self) -> Mapping[Dim, Setting]:
        """The dimensions that may grow, and the shares of their final sizes that they may start from."""
        return dict.fromkeys(self.dims, self.start)

    @property
    def parameters(self) -> Mapping[str, Setting]:
        """The start, and the times."""
        return {"start": self.start} | {f"at.{number}": self.times for number in range(1, self.events + 1)}

    def shares(self, dim: Dim) -> set[float]:
        """Return the shares from every start to 1, for every number of distinct times."""
        counts = range(1, self.events + 1)
        return {share for start in self.start.values for count in counts for share in _shares(start, count)}

    def rise(self, values: Mapping[str, Any], layers: int) -> Rise:
        """Decode parameters into the level at the start and the level after each distinct time.

        The levels are geometrically spaced.
        """
        times = sorted({values[f"at.{number}"] for number in range(1, self.events + 1)})
        shares = _shares(values["start"], len(times))
        first, *later = (Level.of(dict.fromkeys(self.dims, share), layers) for share in shares)
        return first, list(zip(times, later, strict=True))


def _shares(start: float, events: int) -> list[float]:
    """Return the shares from ``start`` to 1, spaced by equal factors."""
    return [float(start ** (1 - step / events)) for step in range(events + 1)]
