"""Per-dimension spaces: each dimension has a start size and growth times of its own."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Annotated, Any, Literal

from pydantic import Field

from nasgrow.spaces.common import Declarative, Rise
from nasgrow.spaces.levels import Dim, Level
from nasgrow.spaces.settings import Setting, Shares
from nasgrow.strict import Strict


class Dimension(Strict):
    """How one dimension may grow."""

    start: Shares
    """The share of its final size to start from."""


class PerDimension(Declarative):
    """Each dimension grows from its start to its final size at one time, or by two equal factors at two."""

    kind: Literal["per-dimension"]
    dims: Annotated[dict[Dim, Dimension], Field(min_length=1)]
    """The dimensions that grow, each with the shares of its final size that it may start from, such
    as ``{hidden: {start: [1, 0.5]}}``."""
    steps: Literal[1, 2] = 1
    """How often a dimension grows. With 2 it first grows to the geometric mean of start and final size.

    If its two times are equal, it grows once.
    """

    @property
    def starts(self) -> Mapping[Dim, Setting]:
        """The dimensions that may grow, and the shares of their final sizes that they may start from."""
        return {dim: dimension.start for dim, dimension in self.dims.items()}

    @property
    def parameters(self) -> Mapping[str, Setting]:
        """The start and the times of each dimension."""
        found: dict[str, Setting] = {}
        for dim, dimension in self.dims.items():
            found[f"start.{dim}"] = dimension.start
            found |= dict.fromkeys(self._times(dim), self.times)
        return found

    def shares(self, dim: Dim) -> set[float]:
        """Return the starts, 1, and with two steps the geometric means between the starts and 1."""
        starts = self.dims[dim].start.values
        return {1.0, *starts, *(sqrt(start) for start in starts if self.steps > 1)}

    def rise(self, values: Mapping[str, Any], layers: int) -> Rise:
        """Decode parameters into the level at the start and the level after each time of growth.

        The times are those of all dimensions, including dimensions that start at their final size.
        So a level may equal the one before it.
        """
        times = {dim: [values[name] for name in self._times(dim)] for dim in self.dims}

        def level(now: float) -> Level:
            shares = {dim: _share(values[f"start.{dim}"], times[dim], now) for dim in self.dims}
            return Level.of(shares, layers)

        return level(0), [(at, level(at)) for at in sorted({at for ats in times.values() for at in ats})]

    def _times(self, dim: Dim) -> list[str]:
        return [f"at.{dim}", f"at2.{dim}"][: self.steps]


def _share(start: float, times: list[float], now: float) -> float:
    """Return the share of a dimension at a time: its start, the geometric mean, or 1."""
    if now < min(times):
        return start
    return sqrt(start) if now < max(times) else 1.0
