"""Compound growth: all dimensions together, in equal factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from nasgrow.search.spaces.common import Declarative, Rise
from nasgrow.search.spaces.levels import DIMS, Dim, Level
from nasgrow.search.spaces.settings import Setting, Shares


class Compound(Declarative):
    """One share for all dimensions, which rises to 1 in as many equal factors as there are distinct times."""

    kind: Literal["compound"]
    dims: Annotated[list[Dim], Field(min_length=1, default_factory=lambda: list(DIMS))]
    """What grows."""
    start: Shares
    """The share of every final size to start from."""
    events: Annotated[int, Field(gt=0)] = 2
    """The largest number of events."""

    @property
    def starts(self) -> Mapping[Dim, Setting]:
        """The dimensions that may grow, and the shares they may start from."""
        return dict.fromkeys(self.dims, self.start)

    @property
    def parameters(self) -> Mapping[str, Setting]:
        """The start, and the times."""
        return {"start": self.start} | {f"at.{number}": self.times for number in range(1, self.events + 1)}

    def rise(self, values: Mapping[str, Any], layers: int) -> Rise:
        """Geometric levels, one for each distinct time."""
        times = sorted({values[f"at.{number}"] for number in range(1, self.events + 1)})
        shares = [values["start"] ** (1 - step / len(times)) for step in range(len(times) + 1)]
        first, *later = (Level.of(dict.fromkeys(self.dims, share), layers) for share in shares)
        return first, list(zip(times, later, strict=True))
