"""The space of fixed shapes: shapes between the smallest start and the final shape, without growth.

The best schedule is compared with the best fixed shape for the same compute. That shape is searched over the
same dimensions as the schedules, so that the comparison does not depend on a list of sizes.
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
"""How many sizes a dimension has, from its smallest to its final one by equal factors.

There are fewer if some are rounded to the same size.
"""

UNKNOWN_SHARE = 0.25
"""The smallest share of a dimension in the space of a user's function, whose starts are unknown."""

SHARE_PREFIX = "share."
"""The prefix of the parameter that gives a dimension's share of its final size."""

SHAPE_PARAMETER = "shape"
"""The parameter that gives a complete shape as JSON, such as a stage of a schedule."""


def given(shape: Shape) -> dict[str, str]:
    """Return the parameters of a trial with this complete shape, without the tuned fields."""
    return {SHAPE_PARAMETER: json.dumps(shape_to(shape))}


class FixedShapes(Space):
    """The fixed shapes over the dimensions that a space of schedules grows.

    Each of these dimensions has a parameter, its share of the final size, and so has the learning
    rate. If the space searches the final shape as well, so does this one.

    Args:
        space: The space of schedules.
        reaches: Called with a shape; returns whether runs can start at it, so that smaller shapes
            than a study's checkpoint are left out. By default all shapes stay.
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
        """Decode parameters: shares, or a complete shape in :data:`SHAPE_PARAMETER`.

        In both cases the learning rate is among the parameters, unless it has a single value.
        """
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
