"""Profiles: what a point is to a model of the search, whatever its parameters are called.

Two schedules are alike if their shapes are, most of the time. So the distance of two points in one dimension
is that of two step functions of time, the logarithm of a size over the budget; it grows with how far apart in
time they grow, and with how much. What a point says besides of its training is compared by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist  # type: ignore[import-untyped]

from nasgrow.search.spaces import Point
from nasgrow.shape import Shape

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NOTHING = ""
"""An operator that does not act, because every event has its own."""


@dataclass(frozen=True)
class Profile:
    """A point as it is compared with others.

    Attributes:
        sizes: For each dimension the logarithm of its size in each part of the budget, so that the sum of
            squared differences is their mean over time.
        rest: The other settings by name: logarithms of numbers, and what is no number.
    """

    sizes: Floats
    rest: Mapping[str, float | str]


def profile(point: Point, parameters: Mapping[str, Any], times: Sequence[float]) -> Profile:
    """The profile of a point.

    Args:
        point: The point.
        parameters: What it was decoded from.
        times: When its events may happen.
    """
    ends = [0.0, *times, 1.0]
    events, shapes = [event.at for event in point.schedule.events], point.schedule.shapes
    logs = [_logs(shape) for shape in shapes]
    columns = [
        sqrt(end - begin) * logs[sum(at <= begin + 1e-9 for at in events)] for begin, end in pairwise(ends)
    ]
    acting = point.acting
    rest = {name: _plain(value) if name in acting else NOTHING for name, value in point.training.items()}
    if "order" in parameters:  # where new layers are put, which no size tells
        rest["order"] = str(parameters["order"])
    return Profile(np.array(columns).T, rest)


@dataclass(frozen=True)
class Profiles:
    """The profiles of several points of one space, side by side.

    Attributes:
        sizes: Of each point and dimension the logarithm of its size in each part of the budget.
        numbers: Of each point its other settings, 0 where one is no number.
        marks: Of each point a hash of those that are no numbers, 0 where one is.
    """

    sizes: Floats
    numbers: Floats
    marks: Integers

    @staticmethod
    def of(profiles: Sequence[Profile]) -> Profiles:
        """The profiles of one point or more."""
        rests = [list(one.rest.values()) for one in profiles]
        shape = len(profiles), len(profiles[0].rest)
        numbers = [[0.0 if isinstance(one, str) else one for one in rest] for rest in rests]
        marks = [[hash((one,)) if isinstance(one, str) else 0 for one in rest] for rest in rests]
        return Profiles(
            np.array([one.sizes for one in profiles]),
            np.array(numbers, np.float64).reshape(shape),
            np.array(marks, np.int64).reshape(shape),
        )

    @staticmethod
    def joined(parts: Sequence[Profiles]) -> Profiles:
        """Those of one part after those of the other."""
        return Profiles(
            np.concatenate([one.sizes for one in parts]),
            np.concatenate([one.numbers for one in parts]),
            np.concatenate([one.marks for one in parts]),
        )

    def at(self, places: Integers) -> Profiles:
        """The profiles of the points at some places."""
        return Profiles(self.sizes[places], self.numbers[places], self.marks[places])

    def settings_apart(self, theirs: Profiles) -> list[Floats]:
        """The squared distances to other points in each setting that is no size: 1 where one is no number."""
        found = []
        for place in range(self.marks.shape[1]):
            ours, others = self.marks[:, place], theirs.marks[:, place]
            away = np.square(self.numbers[:, place, None] - theirs.numbers[None, :, place])
            if ours.any() or others.any():  # not all of them are numbers
                away[ours[:, None] != others[None, :]] = 1.0
            found.append(away)
        return found


def distances(ours: Profiles, theirs: Profiles) -> Floats:
    """The squared distances between points: for each dimension, and for each other setting, a matrix."""
    dims = range(ours.sizes.shape[1])
    sizes = [cdist(ours.sizes[:, dim], theirs.sizes[:, dim], "sqeuclidean") for dim in dims]
    return np.array([*sizes, *ours.settings_apart(theirs)])


@dataclass(frozen=True)
class Placed:
    """Points by a :class:`Metric`.

    Attributes:
        where: Their places in a space whose distances are theirs, but for settings that are no numbers.
        squares: The squared distances from its origin.
        profiles: Their profiles.
    """

    where: Floats
    squares: Floats
    profiles: Profiles


class Metric:
    """The distance of points by all dimensions and other settings together, each with its weight.

    It goes by products, in a fraction of the time that differences take. What rounding leaves of no distance
    is far below what a model can tell apart.

    Args:
        weights: The weight of each dimension and setting, as :func:`distances` has them.
        around: Some of the points: the origin is in the middle of them, which makes for small rounding.
    """

    def __init__(self, weights: Floats, around: Profiles) -> None:
        dims = around.sizes.shape[1]
        self._sizes, self._settings = np.sqrt(weights[:dims, None]), np.sqrt(weights[dims:])
        self._middle, self._level = around.sizes.mean(axis=0), around.numbers.mean(axis=0)

    def place(self, profiles: Profiles) -> Placed:
        """Points as they are compared."""
        sizes = ((profiles.sizes - self._middle) * self._sizes).reshape(-1, self._middle.size)
        where = np.concatenate([sizes, (profiles.numbers - self._level) * self._settings], axis=1)
        return Placed(where, np.square(where).sum(axis=1), profiles)

    def apart(self, ours: Placed, theirs: Placed) -> Floats:
        """The sums of squared distances between points, each with its weight."""
        found = ours.squares[:, None] + theirs.squares[None, :] - 2 * (ours.where @ theirs.where.T)
        for place, weight in enumerate(np.square(self._settings)):
            marks = [one.profiles.marks[:, place] for one in (ours, theirs)]
            if marks[0].any() or marks[1].any():  # not all are numbers: those that differ are 1 apart
                numbers = [one.profiles.numbers[:, place] for one in (ours, theirs)]
                away = np.square(numbers[0][:, None] - numbers[1][None, :])
                found += weight * (marks[0][:, None] != marks[1][None, :]) * (1 - away)
        return np.asarray(np.maximum(0.0, found))


def _logs(shape: Shape) -> Floats:
    """The logarithms of a shape's sizes: hidden, layers, and the means of MLP, heads, keys and values."""
    layers = shape.layers
    groups = [group for layer in layers for group in layer.groups]
    heads = sum(group.count for group in groups)
    return np.array(
        [
            log2(shape.hidden),
            log2(len(layers)),
            log2(sum(layer.mlp for layer in layers) / len(layers)),
            log2(heads / len(layers)),
            log2(sum(group.count * group.key for group in groups) / heads),
            log2(sum(group.count * group.value for group in groups) / heads),
        ]
    )


def _plain(value: object) -> float | str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return log2(value) if value > 0 else float(value)
    return str(value)
