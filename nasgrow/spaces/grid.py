"""List every distinct point of a space, for grid search."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import product
from typing import Any

from nasgrow.errors import UserError
from nasgrow.spaces.space import Space

MAX_GRID_POINTS = 20_000
"""The most points that a grid may have, including points that mean the same runs."""


def check_countable(space: Space) -> None:
    """Raise ``UserError`` if a space has too many points, an unknown number, or no parameter."""
    if not space.settings or space.size > MAX_GRID_POINTS:
        raise UserError(
            f"needs a space of lists and ranges with a step, of at most {MAX_GRID_POINTS:,} points, "
            f"not {space.size:,}"
        )


def points(space: Space) -> dict[Hashable, dict[str, Any]]:
    """Return the parameters of every distinct point of a countable space, by the point's key.

    Of points that mean the same runs, the first is returned. The space is not checked (see
    :func:`check_countable`): of a continuous range only the two ends would be returned.
    """
    found: dict[Hashable, dict[str, Any]] = {}
    for values in product(*(setting.values for setting in space.settings.values())):
        parameters = dict(zip(space.settings, values, strict=True))
        found.setdefault(space.at(parameters).key, parameters)
    return found
