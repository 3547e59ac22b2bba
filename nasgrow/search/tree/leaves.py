"""Leaves: points as the ends of ways through the tree of schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nasgrow.search.config import Pruner
from nasgrow.search.samplers import FULL, recovered
from nasgrow.search.spaces import Point
from nasgrow.search.spaces.training import FROM_THE_START, OPERATOR_FIELDS
from nasgrow.search.tree.profile import Profile, Profiles, profile

Integers = NDArray[np.int64]
Truths = NDArray[np.bool_]

RUNGS = 20, 40, 60, 80
"""The percents of the budget at which it is asked again what to train."""


@dataclass(frozen=True)
class Leaf:
    """A point as the end of a way through the tree.

    Attributes:
        key: Equal for points that mean the same runs; a hash, as whole schedules take long to compare.
        start: Equal for points that start from the same shape; a hash too.
        parameters: What it is decoded from.
        profile: What it is compared by.
        nodes: For each rung, what is equal for points that share their training until there; hashes too.
        told: For each rung, whether a loss there tells something.
        way: The same as for rungs for each time of :func:`stops`.
    """

    key: int
    start: int
    parameters: Mapping[str, Any]
    profile: Profile
    nodes: tuple[int, ...]
    told: tuple[bool, ...]
    way: tuple[int, ...]


def stops(times: Sequence[float]) -> list[float]:
    """The fractions of the budget at which points may part, or be left.

    Args:
        times: When events may happen.
    """
    return sorted({*times, *(rung / FULL for rung in RUNGS)})


def leaf(point: Point, parameters: Mapping[str, Any], times: Sequence[float], pruner: Pruner) -> Leaf:
    """The leaf of a point.

    Args:
        point: The point.
        parameters: What it was decoded from.
        times: When its events may happen.
        pruner: The study's settings that say when losses tell something.
    """
    events = [event.at for event in point.schedule.events]
    after = _nodes(point)

    def node(fraction: float) -> int:
        return after[sum(at < fraction - 1e-9 for at in events)]

    return Leaf(
        hash(point.key),
        hash(point.schedule.start),
        parameters,
        profile(point, parameters, times),
        tuple(node(rung / FULL) for rung in RUNGS),
        tuple(recovered(pruner, events, rung / FULL) for rung in RUNGS),
        tuple(hash((at, node(at))) for at in stops(times)),
    )


def _nodes(point: Point) -> list[int]:
    """What is equal for points that share their training until after so many events.

    What acts at events only counts from the first on, and an operator where an event has none of its own, as
    in the keys of states (:mod:`nasgrow.training.trunks.keys`).
    """
    first = {name: value for name, value in point.training.items() if name in FROM_THE_START}
    acting = {**point.acting, **first}
    named = {name: value for name, value in acting.items() if name not in OPERATOR_FIELDS}
    every, without, begun = (tuple(sorted(one.items())) for one in (acting, named, first))
    path, own = hash(point.schedule.start), True
    found = [hash((path, begun))]
    for event in point.schedule.events:
        path, own = hash((path, event)), own and event.operator is not None
        found.append(hash((path, without if own else every)))
    return found


@dataclass(frozen=True, eq=False)
class Leaves:
    """Several leaves, side by side.

    Attributes:
        parameters: What each is decoded from.
        profiles: What they are compared by.
        keys: Equal for points that mean the same runs.
        starts: Equal for points that start from the same shape.
        nodes: Of each leaf and rung, what is equal for points that share their training until there.
        told: Of each leaf and rung, whether a loss there tells something.
        ways: Of each leaf and stop, what is equal for points that share their training until there.
    """

    parameters: Sequence[Mapping[str, Any]]
    profiles: Profiles
    keys: Integers
    starts: Integers
    nodes: Integers
    told: Truths
    ways: Integers

    @staticmethod
    def of(leaves: Sequence[Leaf]) -> Leaves:
        """One leaf or more."""
        return Leaves(
            [one.parameters for one in leaves],
            Profiles.of([one.profile for one in leaves]),
            np.array([one.key for one in leaves], np.int64),
            np.array([one.start for one in leaves], np.int64),
            np.array([one.nodes for one in leaves], np.int64),
            np.array([one.told for one in leaves]),
            np.array([one.way for one in leaves], np.int64),
        )

    @staticmethod
    def joined(parts: Sequence[Leaves]) -> Leaves:
        """Those of one part after those of the other."""
        return Leaves(
            [one for part in parts for one in part.parameters],
            Profiles.joined([one.profiles for one in parts]),
            np.concatenate([one.keys for one in parts]),
            np.concatenate([one.starts for one in parts]),
            np.concatenate([one.nodes for one in parts]),
            np.concatenate([one.told for one in parts]),
            np.concatenate([one.ways for one in parts]),
        )
