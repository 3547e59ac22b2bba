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


def distances(ours: Sequence[Profile], theirs: Sequence[Profile]) -> Floats:
    """The squared distances between points: for each dimension, and for each other setting, a matrix."""
    a, b = (np.array([one.sizes for one in some]) for some in (ours, theirs))
    found = [cdist(a[:, dim], b[:, dim], "sqeuclidean") for dim in range(a.shape[1])]
    for name in ours[0].rest:
        left, right = (np.array([one.rest[name] for one in some]) for some in (ours, theirs))
        if isinstance(ours[0].rest[name], str):
            found.append((left[:, None] != right[None, :]).astype(float))
        else:
            found.append(np.square(left[:, None] - right[None, :]))
    return np.array(found)


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
