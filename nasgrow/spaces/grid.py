"""The grid: every point of a space, those that mean the same runs once."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import product
from typing import Any

from nasgrow.errors import UserError
from nasgrow.spaces.space import Space

MAX_GRID_POINTS = 20_000
"""The most points, counted with those that mean the same runs, that a grid may have."""


def check_countable(space: Space) -> None:
    """Raise ``UserError`` if a space has too many points for a grid, or their number is not known."""
    if not space.settings or space.size > MAX_GRID_POINTS:
        raise UserError(
            f"wants a space of lists and ranges with a step, of at most {MAX_GRID_POINTS:,} points, "
            f"not {space.size:,}"
        )


def points(space: Space) -> dict[Hashable, dict[str, Any]]:
    """The parameters of every distinct point, by the point's key; of equal points the first."""
    found: dict[Hashable, dict[str, Any]] = {}
    for values in product(*(setting.values for setting in space.settings.values())):
        parameters = dict(zip(space.settings, values, strict=True))
        found.setdefault(space.at(parameters).key, parameters)
    return found
