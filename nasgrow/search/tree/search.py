"""What a tree search trains next: a new branch, or one that was left, until the next rung.

Every trial is a branch of the tree of schedules; it parts from others where its events do, and pays for what
no other has trained. At each rung the question is put anew: of this branch, of all that were left, and of all
that nobody has begun, the one is trained on whose expected improvement over the best final loss is largest
for each FLOP that is left of it. The first few branches are trained to their end, far apart from each other:
what they come to is what losses at rungs are judged by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import nsmallest
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState
from scipy.special import ndtr  # type: ignore[import-untyped]

from nasgrow.flops import forward_flops
from nasgrow.search.config import Pruner
from nasgrow.search.grid import points
from nasgrow.search.samplers import FULL, trial_seed
from nasgrow.search.spaces import Point, Space
from nasgrow.search.study import Study
from nasgrow.search.tree.branches import Branch, Branches, Learned, fitted
from nasgrow.search.tree.leaves import RUNGS, Leaf, Leaves, leaf
from nasgrow.search.tree.profile import Profiles, distances
from nasgrow.search.tree.sample import Sample
from nasgrow.search.tree.value import Belief

Floats = NDArray[np.float64]

LISTED = 5_000
"""A space of so many points is considered whole; of larger ones a sample, a part of it new for each trial."""

PARENTS = 8
"""The best branches, of which a sample has variations."""

PRICED = 64
"""Points whose price is asked for, the most promising ones: to know one takes milliseconds."""

OFFERED = 100
"""Branches that were left and are considered again: those that are expected to become the best."""


@dataclass(frozen=True)
class Grown:
    """A tree so far, as it is asked about.

    Attributes:
        trials: The trials of the search that count.
        left: Those that can be taken up.
        dead: The parameters of points whose workers died too often: they are not offered again.
        number: How many trials there were in all; decides where nothing else does.
        price: The FLOPs that a point would execute now, if that is known.
        full: Whether no further point may be begun. Then a branch goes on only if it is expected to become
            the best.
    """

    trials: Sequence[FrozenTrial]
    left: Sequence[FrozenTrial]
    dead: Sequence[Mapping[str, Any]]
    number: int
    price: Callable[[Mapping[str, Any]], float] | None
    full: bool


class Tree:
    """The tree of a study.

    Args:
        study: The study.
        parameters: Those of a trial; None if not all are known.
    """

    def __init__(self, study: Study, parameters: Callable[[FrozenTrial], Mapping[str, Any] | None]) -> None:
        self._study, self._parameters = study, parameters
        self._whole = _listed(study.space, study.config.pruner) if study.space.size <= LISTED else None
        self._sample = Sample(study.config.name, study.space, self._leaf)
        self._ways: dict[int, tuple[Leaf, tuple[float, ...]]] = {}
        self._ended: dict[int, Branch] = {}
        self._learned: dict[tuple[int, ...], Learned] = {}
        self._weights: dict[tuple[int, ...], Floats | None] = {}
        self._beliefs: dict[Leaves, Belief] = {}

    def next(self, grown: Grown) -> FrozenTrial | Mapping[str, Any] | None:
        """What to train next: a trial that was left, the parameters of a new point, or nothing."""
        seen = self._known(grown.trials)
        new = None if grown.full else self._new(seen, grown)
        if len(seen) < self._startup or sum(one.loss is not None for one in seen) < 2:
            return None if new is None else self._farthest(seen, new, grown.number)
        numbers = {trial.number for trial in grown.left}
        again = [one for one in seen if one.trial.number in numbers]
        return self._best(seen, again, new, grown.price)

    def goes_on(self, grown: Grown, trial: FrozenTrial) -> bool:
        """Whether a branch that has come to a rung is still what should be trained."""
        ended = [one for one in grown.trials if one.state == TrialState.COMPLETE]
        if len(ended) < max(2, self._startup):
            return True
        here = trial.number
        if self._trained_ahead(self._known(grown.trials), here):
            return True
        budget, seeds = self._study.budget, len(self._study.config.seeds)
        own = self._ways[here][0].parameters

        def price(parameters: Mapping[str, Any]) -> float:
            if parameters is own:
                return (seeds - max(trial.intermediate_values) / FULL) * budget
            return budget * seeds if grown.price is None else grown.price(parameters)

        found = self.next(replace(grown, left=[*grown.left, trial], price=price))
        return isinstance(found, FrozenTrial) and found.number == here

    def _trained_ahead(self, seen: Sequence[Branch], number: int) -> bool:
        """Whether another branch has trained the way to the next rung, so that going on costs nothing."""
        (own,) = (one for one in seen if one.trial.number == number)
        rung = sum(loss is not None for loss in own.losses)
        return rung < len(RUNGS) and any(
            one.leaf.nodes[rung] == own.leaf.nodes[rung] and one.losses[rung] is not None
            for one in seen
            if one is not own
        )

    @property
    def finite(self) -> bool:
        """Whether the space is considered whole, so that it can be exhausted."""
        return self._whole is not None

    def exhausted(self, trials: Sequence[FrozenTrial], dead: Sequence[Mapping[str, Any]]) -> bool:
        """Whether these and those that are not offered again are all points of a space considered whole."""
        assert self._whole is not None
        return len(self._keys(self._known(trials), dead)) == len(self._whole.keys)

    @property
    def _startup(self) -> int:
        return self._study.config.sampler.startup

    def _leaf(self, parameters: Mapping[str, Any]) -> Leaf:
        return self._leaf_of(self._study.space.at(parameters), parameters)

    def _leaf_of(self, point: Point, parameters: Mapping[str, Any]) -> Leaf:
        return leaf(point, parameters, self._study.space.times, self._study.config.pruner)

    def _known(self, trials: Sequence[FrozenTrial]) -> list[Branch]:
        """The trials as branches; what does not change of one is computed once."""
        found = []
        for trial in trials:
            number = trial.number
            branch = self._ended.get(number)
            if branch is None:
                if number not in self._ways:
                    parameters = self._parameters(trial)
                    if parameters is None:
                        continue
                    point = self._study.space.at(parameters)
                    self._ways[number] = self._leaf_of(point, parameters), self._sizes(point)
                branch = Branch(trial, *self._ways[number])
                if trial.state.is_finished():
                    self._ended[number] = branch
            found.append(branch)
        return found

    def _sizes(self, point: Point) -> tuple[float, ...]:
        """The logarithm of a step's FLOPs at each rung."""
        schedule = point.schedule
        shapes = [schedule.shapes[sum(event.at < rung / 100 for event in schedule.events)] for rung in RUNGS]
        variant = self._study.config.variant
        return tuple(math.log2(forward_flops(shape, variant, 1, shape.context)) for shape in shapes)

    def _keys(self, seen: Sequence[Branch], dead: Sequence[Mapping[str, Any]]) -> set[int]:
        """The keys of branches, and of what is not offered again."""
        return {*(one.leaf.key for one in seen), *(self._leaf(one).key for one in dead)}

    def _new(self, seen: Sequence[Branch], grown: Grown) -> _New | None:
        """Points that no trial has."""
        there = list(self._keys(seen, grown.dead))
        if self._whole is not None:
            return _New.of([self._whole], lambda keys: ~np.isin(keys, there))
        best = sorted(seen, key=lambda one: math.inf if one.loss is None else one.loss)[:PARENTS]
        parts = self._sample.parts(best, grown.number)
        # A large space may have few points: to take one that has a result costs nothing.
        left = {self._ways[one.number][0].key for one in grown.left}
        known = list({one.leaf.key for one in seen if one.trial.state.is_finished()} - left)
        return _New.of(parts, lambda keys: ~np.isin(keys, there)) or _New.of(
            parts, lambda keys: np.isin(keys, known)
        )

    def _farthest(self, seen: Sequence[Branch], new: _New, number: int) -> Mapping[str, Any]:
        """The point that is farthest from all branches."""
        if not seen:
            rng = np.random.default_rng(trial_seed(self._study.config.name, number))
            return new.leaves.parameters[int(rng.choice(np.flatnonzero(new.offered)))]
        away = distances(new.leaves.profiles, Profiles.of([one.leaf.profile for one in seen]))
        nearest = np.where(new.offered, away.sum(axis=0).min(axis=1), -1.0)
        return new.leaves.parameters[int(nearest.argmax())]

    def _best(
        self,
        seen: Sequence[Branch],
        again: Sequence[Branch],
        new: _New | None,
        price: Callable[[Mapping[str, Any]], float] | None,
    ) -> FrozenTrial | Mapping[str, Any] | None:
        """What has the largest expected improvement for each FLOP that is left of it."""
        learned = self._learn([one for one in seen if one.trial.state.is_finished()])
        again = _offered(again, learned)
        offers: list[Leaves] = [Leaves.of([one.leaf for one in again])] if again else []
        beliefs = [learned.process.believe(one.profiles) for one in offers]
        if new is not None:
            offers.append(new.leaves)
            beliefs += self._believe(learned, new.parts)
        if not offers:
            return None
        live = [one for one in seen if not one.trial.state.is_finished()]
        mean, deviation = self._predict(learned, live, Belief.joined(beliefs))
        parameters = [one for offer in offers for one in offer.parameters]
        count = len(again)
        if new is not None:
            learned.look_up(Branches.of(live), new.leaves, mean[count:], deviation[count:])
        promise = log_improvement(mean, deviation, learned.best)
        if new is None:
            promise = np.where(mean < learned.best, promise, -np.inf)
        else:
            promise[count:][~new.offered] = -np.inf
        order = np.argsort(-promise, kind="stable")
        listed = [int(place) for place in order if place < count]
        listed += [int(place) for place in order if place >= count and math.isfinite(promise[place])][:PRICED]
        least = self._study.budget / 1000
        scores = {
            place: promise[place] - math.log(max(least, price(parameters[place]) if price else 1.0))
            for place in listed
        }
        place = max(listed, key=lambda place: float(scores[place]))
        if not math.isfinite(promise[place]):
            return None
        return again[place].trial if place < count else parameters[place]

    def _learn(self, ended: Sequence[Branch]) -> Learned:
        """What branches that ended tell, worked out once."""
        numbers = tuple(one.trial.number for one in ended)
        if numbers not in self._learned:
            first = numbers[: fitted(len(numbers))]
            if first not in self._weights:
                some = ended[: len(first)]
                enough = sum(one.loss is not None for one in some) > 1
                self._weights = {first: Learned(some).weights if enough else None}
            self._learned = {numbers: Learned(ended, self._weights[first])}
            self._beliefs = {}
        return self._learned[numbers]

    def _believe(self, learned: Learned, parts: Sequence[Leaves]) -> list[Belief]:
        """What is believed of new points before anything else ends, worked out once."""
        self._beliefs = {
            part: self._beliefs.get(part) or learned.process.believe(part.profiles) for part in parts
        }
        return list(self._beliefs.values())

    def _predict(self, learned: Learned, live: Sequence[Branch], belief: Belief) -> tuple[Floats, Floats]:
        """The mean and the standard deviation of final losses, with what live branches have come to."""
        if live:
            finals, variances = learned.expected(Branches.of(live))
            known = ~np.isnan(finals)
            first = [*np.flatnonzero(known), *np.flatnonzero(~known)]
            profiles = Profiles.of([live[place].leaf.profile for place in first])
            losses, noise = learned.scaled(finals[known], variances[known])
            belief = learned.process.updated(belief, profiles, losses, noise)
        return learned.unscaled(belief.mean, belief.deviation)


@dataclass(frozen=True)
class _New:
    """Points that a trial may be begun with.

    Attributes:
        parts: The points, in parts that stay the same for some time.
        leaves: All of them.
        offered: Which of them may be: those that nobody has, each once.
    """

    parts: Sequence[Leaves]
    leaves: Leaves
    offered: NDArray[np.bool_]

    @staticmethod
    def of(parts: Sequence[Leaves], allowed: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> _New | None:
        """Those whose keys are allowed; None if there are none."""
        leaves = parts[0] if len(parts) == 1 else Leaves.joined(parts)
        once = np.zeros(len(leaves.keys), np.bool_)
        once[np.unique(leaves.keys, return_index=True)[1]] = True
        offered = once & allowed(leaves.keys)
        return _New(parts, leaves, offered) if offered.any() else None


def _offered(again: Sequence[Branch], learned: Learned) -> list[Branch]:
    """Of many branches that could go on those that promise the most, and the one that is at a rung."""
    if len(again) <= OFFERED:
        return list(again)

    def order(branch: Branch) -> float:
        ended = branch.trial.state.is_finished()
        return learned.final(branch.trial.number) if ended else -math.inf

    kept = {one.trial.number for one in nsmallest(OFFERED, again, key=order)}
    return [one for one in again if one.trial.number in kept]


@lru_cache(maxsize=4)
def _listed(space: Space, pruner: Pruner) -> Leaves:
    """Every point of a space."""
    return Leaves.of([leaf(space.at(one), one, space.times, pruner) for one in points(space).values()])


def log_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """The logarithm of the expected improvement of normal variables over the best value.

    It is s (phi(z) + z Phi(z)) with z = (best - mean) / s (Jones et al. 1998, equation 15); far below, where
    that is lost to rounding, s phi(z) / z**2.
    """
    z = (best - mean) / deviation
    density = np.exp(-np.square(z) / 2) / math.sqrt(2 * math.pi)
    far = -np.square(z) / 2 - math.log(math.sqrt(2 * math.pi)) - 2 * np.log(np.maximum(1.0, -z))
    near = np.log(np.maximum(1e-300, density + z * ndtr(z)))
    return np.asarray(np.log(deviation) + np.where(z < -5, far, near))
