"""Growth per dimension: each has its own start and its own times."""

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
    """Each dimension goes from its start to 1 at its own time, or in two equal factors at two."""

    kind: Literal["per-dimension"]
    dims: Annotated[dict[Dim, Dimension], Field(min_length=1)]
    """What grows."""
    steps: Literal[1, 2] = 1
    """With two, a dimension grows to the geometric mean at the earlier of its times; equal times are one."""

    @property
    def starts(self) -> Mapping[Dim, Setting]:
        """The dimensions that may grow, and the shares they may start from."""
        return {dim: dimension.start for dim, dimension in self.dims.items()}

    @property
    def parameters(self) -> Mapping[str, Setting]:
        """For each dimension the start, and the times."""
        found: dict[str, Setting] = {}
        for dim, dimension in self.dims.items():
            found[f"start.{dim}"] = dimension.start
            found |= dict.fromkeys(self._times(dim), self.times)
        return found

    def shares(self, dim: Dim) -> set[float]:
        """The starts, their way to 1, and 1."""
        starts = self.dims[dim].start.values
        return {1.0, *starts, *(sqrt(start) for start in starts if self.steps > 1)}

    def rise(self, values: Mapping[str, Any], layers: int) -> Rise:
        """The level after each time at which any dimension grows."""
        times = {dim: [values[name] for name in self._times(dim)] for dim in self.dims}

        def level(now: float) -> Level:
            shares = {dim: _share(values[f"start.{dim}"], times[dim], now) for dim in self.dims}
            return Level.of(shares, layers)

        return level(0), [(at, level(at)) for at in sorted({at for ats in times.values() for at in ats})]

    def _times(self, dim: Dim) -> list[str]:
        return [f"at.{dim}", f"at2.{dim}"][: self.steps]


def _share(start: float, times: list[float], now: float) -> float:
    """The share of a dimension now: at its start, on its way, or whole."""
    if now < min(times):
        return start
    return sqrt(start) if now < max(times) else 1.0
