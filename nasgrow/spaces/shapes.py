"""Fixed shapes: everything between the smallest start of a space and its final shape, without growth.

A search of schedules is compared with the best fixed shape for the same compute. That one is searched too,
over the same dimensions, so that no list of sizes decides the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from nasgrow.schedule import Schedule, shape_from, shape_to
from nasgrow.shape import Shape
from nasgrow.spaces.common import GRID
from nasgrow.spaces.levels import Dim, Level, shape_at
from nasgrow.spaces.settings import Choices, Given, Setting, Suggests
from nasgrow.spaces.space import Point, Space
from nasgrow.spaces.training import PEAK

LEVELS = 5
"""Sizes of a dimension, from its smallest to its final one in equal factors; fewer if some are the same."""

UNKNOWN_SHARE = 0.25
"""The smallest share of a dimension where only a user's function knows how small it may start."""

SHARE_PREFIX = "share."
"""What the parameter of a dimension begins with."""

SHAPE_PARAMETER = "shape"
"""The parameter of a shape that is given whole, as JSON: one that a schedule passes through."""


def given(shape: Shape) -> dict[str, str]:
    """The parameters of a shape that is given whole, but for what is tuned."""
    return {SHAPE_PARAMETER: json.dumps(shape_to(shape))}


class FixedShapes(Space):
    """The shapes that schedules of a space may pass through, and those between them.

    Every dimension that the space grows has its own share of the final size. If the space searches the final
    shape as well, so does this one.

    Args:
        space: The space of schedules.
        reaches: Whether a run can have a shape: a checkpoint that it starts from may be too large.
    """

    def __init__(self, space: Space, reaches: Callable[[Shape], bool] = lambda shape: True) -> None:
        super().__init__(space.final, space.variant, space.grown, GRID)
        self.rounding, self.free_final = space.rounding, space.free_final
        self.largest, self.smallest, self.longest = space.largest, space.smallest, space.longest
        self.grown, self.times, self.last = space.grown, (), 0.0
        self.training = {PEAK: space.training[PEAK]}
        self._shares: dict[Dim, Choices] = {}
        for dim, least in space.grown.items():
            levels = [(least or UNKNOWN_SHARE) ** (step / (LEVELS - 1)) for step in range(LEVELS)]
            distinct = {space.fixed(share, [dim]): round(share, 4) for share in reversed(levels)}
            shares = [share for shape, share in distinct.items() if reaches(shape)]
            self._shares[dim] = Choices(sorted(shares, reverse=True))
        every: dict[str, Setting] = {
            **(self.free_final.parameters if self.free_final else {}),
            **{f"{SHARE_PREFIX}{dim}": choices for dim, choices in self._shares.items()},
            **self.training,
        }
        self.settings = {name: setting for name, setting in every.items() if setting.count > 1}
        self._all = every

    def at(self, parameters: Mapping[str, Any]) -> Point:
        """The point of these parameters, or of a shape that is given whole."""
        if SHAPE_PARAMETER not in parameters:
            return super().at(parameters)
        shape = shape_from(json.loads(parameters[SHAPE_PARAMETER]), SHAPE_PARAMETER)
        return Point(Schedule(shape), {PEAK: self.training[PEAK].suggest(PEAK, Given(parameters))})

    def sample(self, trial: Suggests) -> Point:
        """Ask a trial for its parameters, and decode them."""
        values = {name: setting.suggest(name, trial) for name, setting in self._all.items()}
        final = self.free_final.shape(values) if self.free_final else self.final
        level = Level.of({dim: values[f"{SHARE_PREFIX}{dim}"] for dim in self._shares}, len(final.layers))
        shape, _ = shape_at(final, level, "top", self.variant, self.rounding)
        return Point(Schedule(shape), {name: values[name] for name in self.training})
