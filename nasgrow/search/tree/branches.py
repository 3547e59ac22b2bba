"""Branches: trials of a tree search, and what those that ended tell of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from nasgrow.search.taking_up import taken_up
from nasgrow.search.tree.leaves import RUNGS, Leaf, Leaves
from nasgrow.search.tree.outlook import Outlook
from nasgrow.search.tree.profile import Profiles, distances
from nasgrow.search.tree.value import Process, weigh

Floats = NDArray[np.float64]

OBSERVED = 200
"""Branches that are learned from: the best and the latest."""

FITTED_ANEW = 8
"""The weights of dimensions are fitted anew when one in so many more branches have ended: that takes long."""


@dataclass(frozen=True)
class Branch:
    """A trial: the leaf that it leads to, and the logarithm of a step's FLOPs at each rung."""

    trial: FrozenTrial
    leaf: Leaf
    sizes: tuple[float, ...]

    @property
    def origin(self) -> int:
        """The number that it had first: it has another each time that it is taken up."""
        return [*taken_up(self.trial), self.trial.number][0]

    @property
    def loss(self) -> float | None:
        """The final loss, if it has one."""
        return self.trial.value if self.trial.state == TrialState.COMPLETE else None

    @cached_property
    def losses(self) -> tuple[float | None, ...]:
        """The loss at each rung that it came to."""
        told = sorted(self.trial.intermediate_values.items())
        return tuple(next((loss for step, loss in told if step >= rung), None) for rung in RUNGS)


@dataclass(frozen=True)
class Branches:
    """Several branches, side by side; what is not known is not a number.

    Attributes:
        numbers: Those of their trials.
        ends: Their final losses.
        diverged: Whether they have none because they diverged.
        losses: Of each branch and rung the loss.
        sizes: Of each branch and rung the logarithm of a step's FLOPs.
        nodes: Of each branch and rung, what is equal for points that share their training until there.
        told: Of each branch and rung, whether a loss there tells something.
    """

    numbers: NDArray[np.int64]
    ends: Floats
    diverged: NDArray[np.bool_]
    losses: Floats
    sizes: Floats
    nodes: NDArray[np.int64]
    told: NDArray[np.bool_]

    @staticmethod
    def of(branches: Sequence[Branch]) -> Branches:
        """Any number of branches."""
        shape = len(branches), len(RUNGS)
        return Branches(
            np.array([one.trial.number for one in branches], np.int64),
            np.array([one.loss for one in branches], np.float64),
            np.array([one.trial.user_attrs.get("status") == "diverged" for one in branches], np.bool_),
            np.array([one.losses for one in branches], np.float64).reshape(shape),
            np.array([one.sizes for one in branches], np.float64).reshape(shape),
            np.array([one.leaf.nodes for one in branches], np.int64).reshape(shape),
            np.array([one.leaf.told for one in branches], np.bool_).reshape(shape),
        )


class Learned:
    """What branches that ended tell of the final losses of others.

    Args:
        ended: Those branches, in the order of their numbers; at least two of them have a final loss.
        weights: The weight of each dimension, if it is known.

    Attributes:
        best: The lowest final loss.
        process: What it has observed, with mean 0 and variance 1.
    """

    def __init__(self, ended: Sequence[Branch], weights: Floats | None = None) -> None:
        self._ended = Branches.of(ended)
        ends = self._ended.ends[~np.isnan(self._ended.ends)]
        self.best, self._worst = float(ends.min()), float(ends.max())
        self._level, self._scale = float(ends.mean()), max(1e-3, float(ends.std()))
        self._outlooks = [self._outlook(rung) for rung in range(len(RUNGS))]
        finals, variances = self.expected(self._ended)
        self._finals = dict(zip(self._ended.numbers.tolist(), finals.tolist(), strict=True))
        observed = _observed(finals)
        profiles = Profiles.of([ended[place].leaf.profile for place in observed])
        losses, noise = self.scaled(finals[observed], variances[observed])
        self.weights = weigh(distances(profiles, profiles), losses, noise) if weights is None else weights
        self.process = Process(self.weights, profiles, losses, noise)

    def _outlook(self, rung: int) -> Outlook | None:
        """What losses at a rung tell, if at least two branches that ended say so."""
        ended = self._ended
        losses = ended.losses[:, rung]
        whole = ended.told[:, rung] & ~np.isnan(losses) & ~np.isnan(ended.ends)
        if whole.sum() < 2:
            return None
        return Outlook(losses[whole], ended.sizes[whole, rung], ended.ends[whole])

    def expected(self, branches: Branches) -> tuple[Floats, Floats]:
        """The final losses of branches and their variances: known, expected, or not a number yet."""
        finals = np.where(branches.diverged, self._worst, branches.ends)
        variances = np.zeros(len(finals))
        for rung, outlook in reversed(list(enumerate(self._outlooks))):
            losses = branches.losses[:, rung]
            which = np.isnan(finals) & ~np.isnan(losses) & branches.told[:, rung]
            if outlook is not None and which.any():
                finals[which], variances[which] = outlook.final(losses[which], branches.sizes[which, rung])
        return finals, variances

    def final(self, number: int) -> float:
        """The final loss of a branch that ended, as far as it is known; infinite if it is not."""
        found = self._finals[number]
        return np.inf if np.isnan(found) else found

    def scaled(self, losses: Floats, variances: Floats) -> tuple[Floats, Floats]:
        """Losses and variances as the process has them."""
        return (losses - self._level) / self._scale, variances / self._scale**2

    def unscaled(self, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
        """Losses and standard deviations as they are."""
        return self._level + self._scale * mean, self._scale * deviation

    def look_up(self, live: Branches, new: Leaves, mean: Floats, deviation: Floats) -> None:
        """Let new points that part from a branch after a rung know of its loss there: in place.

        Args:
            live: The branches that have not ended.
            new: The points.
            mean: Their expected losses.
            deviation: The standard deviations.
        """
        open_ = np.ones(len(mean), np.bool_)
        for rung, outlook in reversed(list(enumerate(self._outlooks))):
            losses, sizes, nodes = (
                np.concatenate([of[:, rung] for of in both])
                for both in (
                    (self._ended.losses, live.losses),
                    (self._ended.sizes, live.sizes),
                    (self._ended.nodes, live.nodes),
                )
            )
            came = np.flatnonzero(~np.isnan(losses))
            if outlook is None or not len(came):
                continue
            came = came[np.argsort(nodes[came], kind="stable")]
            places = np.searchsorted(nodes[came], new.nodes[:, rung])
            nearest = came[np.minimum(places, len(came) - 1)]
            which = np.flatnonzero(open_ & new.told[:, rung] & (nodes[nearest] == new.nodes[:, rung]))
            if not len(which):
                continue
            final, variance = outlook.final(losses[nearest[which]], sizes[nearest[which]])
            precision = deviation[which] ** -2, 1 / variance
            mean[which] = (mean[which] * precision[0] + final * precision[1]) / sum(precision)
            deviation[which] = sum(precision) ** -0.5
            open_[which] = False


def fitted(count: int) -> int:
    """How many of so many branches the weights of dimensions are fitted to: the first."""
    found = 1
    while (more := found + max(1, found // FITTED_ANEW)) <= count:
        found = more
    return found


def _observed(finals: Floats) -> NDArray[np.int64]:
    """The places of the branches that are learned from, of which something is known."""
    known = np.flatnonzero(~np.isnan(finals))
    ranked = known[np.argsort(finals[known], kind="stable")]
    if len(ranked) > OBSERVED:
        ranked = np.concatenate([ranked[: OBSERVED // 2], np.sort(ranked[OBSERVED // 2 :])[-OBSERVED // 2 :]])
    return ranked
