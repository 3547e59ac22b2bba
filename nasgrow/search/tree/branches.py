"""Branches: trials of a tree search, and what those that ended tell of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from nasgrow.search.samplers import FULL
from nasgrow.search.taking_up import left_early, taken_up
from nasgrow.search.tree.leaves import RUNGS, Leaf, Leaves
from nasgrow.search.tree.outlook import Outlook
from nasgrow.search.tree.profile import Profiles, distances
from nasgrow.search.tree.value import Process, weigh

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Truths = NDArray[np.bool_]

OBSERVED = 128
"""Branches that are learned from: the best and the latest."""

FITTED_ANEW = 8
"""The weights of dimensions are fitted anew when one in so many more branches have ended, or have a final
loss: that takes long."""


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

    @property
    def trained(self) -> float:
        """The fraction of the budget beyond which it was not trained, as far as it tells.

        One that is trained again because its worker died tells nothing.
        """
        came = sum(loss is not None for loss in self.losses)
        if left_early(self.trial):
            return (0, *RUNGS)[came] / FULL
        sure = not self.trial.state.is_finished() and "failed_trial" not in self.trial.system_attrs
        return (*RUNGS, FULL)[came] / FULL if sure else 1.0

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
        left: Whether they have none because they were left.
        losses: Of each branch and rung the loss.
        sizes: Of each branch and rung the logarithm of a step's FLOPs.
        keys: Equal for branches that mean the same runs.
        starts: Equal for branches that start from the same shape.
        nodes: Of each branch and rung, what is equal for points that share their training until there.
        told: Of each branch and rung, whether a loss there tells something.
        ways: Of each branch and stop, what is equal for points that share their training until there.
        rows: The places of their profiles among
        all_profiles: those of more branches, which are large.
    """

    numbers: Integers
    ends: Floats
    diverged: Truths
    left: Truths
    losses: Floats
    sizes: Floats
    keys: Integers
    starts: Integers
    nodes: Integers
    told: Truths
    ways: Integers
    rows: Integers
    all_profiles: Profiles

    @staticmethod
    def of(branches: Sequence[Branch]) -> Branches:
        """One branch or more."""
        leaves = Leaves.of([one.leaf for one in branches])
        return Branches(
            np.array([one.trial.number for one in branches], np.int64),
            np.array([one.loss for one in branches], np.float64),
            np.array([one.trial.user_attrs.get("status") == "diverged" for one in branches], np.bool_),
            np.array([left_early(one.trial) for one in branches], np.bool_),
            np.array([one.losses for one in branches], np.float64),
            np.array([one.sizes for one in branches], np.float64),
            leaves.keys,
            leaves.starts,
            leaves.nodes,
            leaves.told,
            leaves.ways,
            np.arange(len(branches)),
            leaves.profiles,
        )

    @staticmethod
    def joined(parts: Sequence[Branches]) -> Branches:
        """Those of one part after those of the other."""
        columns = {one.name: [getattr(part, one.name) for part in parts] for one in fields(Branches)}
        profiles = Profiles.joined([part.profiles() for part in parts])
        del columns["all_profiles"]
        made = {name: np.concatenate(of) for name, of in columns.items()}
        return Branches(**made | {"rows": np.arange(len(made["rows"]))}, all_profiles=profiles)

    def at(self, places: Integers) -> Branches:
        """The branches at some places."""
        columns = {one.name: getattr(self, one.name) for one in fields(self)}
        profiles = columns.pop("all_profiles")
        return Branches(all_profiles=profiles, **{name: column[places] for name, column in columns.items()})

    def profiles(self, places: Integers | slice = slice(None)) -> Profiles:
        """What the branches at some places are compared by; all by default."""
        return self.all_profiles.at(self.rows[places])

    @property
    def whole(self) -> int:
        """How many have a final loss."""
        return int((~np.isnan(self.ends)).sum())


class Book:
    """Every branch that has ended, written down once: whoever asks for many finds them side by side.

    Attributes:
        written: The branches by their trials' numbers.
    """

    def __init__(self) -> None:
        self.written: dict[int, Branch] = {}
        self._places: dict[int, int] = {}
        self._new: list[Branch] = []
        self._all: Branches | None = None
        self._asked: tuple[tuple[int, ...], Branches] | None = None

    def write(self, branch: Branch) -> None:
        """Write a branch down that has ended."""
        self._places[branch.trial.number] = len(self.written)
        self.written[branch.trial.number] = branch
        self._new.append(branch)

    def of(self, numbers: tuple[int, ...]) -> Branches:
        """The branches with these numbers, at least one; asked for the same again, the same object."""
        if self._asked is None or self._asked[0] != numbers:
            if self._new:
                old = [] if self._all is None else [self._all]
                self._all, self._new = Branches.joined([*old, Branches.of(self._new)]), []
            assert self._all is not None
            places = np.array([self._places[number] for number in numbers], np.int64)
            self._asked = numbers, self._all.at(places)
        return self._asked[1]


class Learned:
    """What branches that ended tell of the final losses of others.

    Args:
        ended: Those branches, in the order of their numbers; at least two of them have a final loss.
        weights: The weight of each dimension, if it is known.

    Attributes:
        ended: The same.
        best: The lowest final loss.
        finals: The final loss of each, as far as it is known or expected; infinite if it is not.
        process: What it has observed, with mean 0 and variance 1.
    """

    def __init__(self, ended: Branches, weights: Floats | None = None) -> None:
        self.ended = ended
        ends = ended.ends[~np.isnan(ended.ends)]
        self.best, self._worst = float(ends.min()), float(ends.max())
        self._level, self._scale = float(ends.mean()), max(1e-3, float(ends.std()))
        self._outlooks = [self._outlook(rung) for rung in range(len(RUNGS))]
        finals, variances = self.expected(ended)
        self.finals = np.where(np.isnan(finals), np.inf, finals)
        observed = _observed(finals)
        profiles = ended.profiles(observed)
        losses, noise = self.scaled(finals[observed], variances[observed])
        self.weights = weigh(distances(profiles, profiles), losses, noise) if weights is None else weights
        self.process = Process(self.weights, profiles, losses, noise)

    def _outlook(self, rung: int) -> Outlook | None:
        """What losses at a rung tell, if at least two branches that ended say so."""
        ended = self.ended
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

    def scaled(self, losses: Floats, variances: Floats) -> tuple[Floats, Floats]:
        """Losses and variances as the process has them."""
        return (losses - self._level) / self._scale, variances / self._scale**2

    def unscaled(self, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
        """Losses and standard deviations as they are."""
        return self._level + self._scale * mean, self._scale * deviation

    def look_up(self, ways: Ways, told: Truths, mean: Floats, deviation: Floats) -> None:
        """Let new points that part from a branch after a rung know of its loss there: in place.

        Args:
            ways: How far their ways are known.
            told: Of each and each rung, whether a loss there tells something.
            mean: Their expected losses.
            deviation: The standard deviations.
        """
        open_ = np.ones(len(mean), np.bool_)
        for rung, outlook in reversed(list(enumerate(self._outlooks))):
            which = np.flatnonzero(open_ & told[:, rung] & ~np.isnan(ways.losses[:, rung]))
            if outlook is None or not len(which):
                continue
            final, variance = outlook.final(ways.losses[which, rung], ways.sizes[which, rung])
            precision = deviation[which] ** -2, 1 / variance
            mean[which] = (mean[which] * precision[0] + final * precision[1]) / sum(precision)
            deviation[which] = sum(precision) ** -0.5
            open_[which] = False


@dataclass(frozen=True)
class Ways:
    """How far branches know the ways of points.

    Attributes:
        losses: Of each point and rung the loss of the first branch that came there on the same way; not a
            number if none did.
        sizes: Of each point and rung the logarithm of that branch's FLOPs of a step.
    """

    losses: Floats
    sizes: Floats

    @staticmethod
    def of(nodes: Integers, branches: Branches) -> Ways:
        """The ways of points by their nodes, as some branches know them."""
        losses, sizes = np.full(nodes.shape, np.nan), np.full(nodes.shape, np.nan)
        for rung in range(nodes.shape[1]):
            came = np.flatnonzero(~np.isnan(branches.losses[:, rung]))
            if not len(came):
                continue
            came = came[np.argsort(branches.nodes[came, rung], kind="stable")]
            theirs = branches.nodes[came, rung]
            first = np.minimum(np.searchsorted(theirs, nodes[:, rung]), len(came) - 1)
            which = theirs[first] == nodes[:, rung]
            losses[which, rung] = branches.losses[came[first[which]], rung]
            sizes[which, rung] = branches.sizes[came[first[which]], rung]
        return Ways(losses, sizes)

    def also(self, others: Ways) -> Ways:
        """The same ways, where nothing is known as others know them."""
        known = ~np.isnan(self.losses)
        losses, sizes = (self.losses, others.losses), (self.sizes, others.sizes)
        return Ways(np.where(known, *losses), np.where(known, *sizes))


def fitted(count: int) -> int:
    """The last count, up to this one, at which the weights of dimensions are fitted anew."""
    found = 1
    while (more := found + max(1, found // FITTED_ANEW)) <= count:
        found = more
    return found


def _observed(finals: Floats) -> Integers:
    """The places of the branches that are learned from, of which something is known."""
    known = np.flatnonzero(~np.isnan(finals))
    ranked = known[np.argsort(finals[known], kind="stable")]
    if len(ranked) > OBSERVED:
        ranked = np.concatenate([ranked[: OBSERVED // 2], np.sort(ranked[OBSERVED // 2 :])[-OBSERVED // 2 :]])
    return ranked
