"""What a tree search trains next: a new branch, or one that was left, until the next rung.

Every trial is a branch of the tree of schedules; it parts from others where its events do, and pays for what
no other has trained. At each rung the question is put anew: of this branch, of all that were left, and of all
that nobody has begun, the one is trained on whose expected improvement over the best final loss is largest
for each FLOP that is left of it. The first few branches are trained to their end, far apart from each other:
what they come to is what losses at rungs are judged by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial
from scipy.special import ndtr  # type: ignore[import-untyped]

from nasgrow.flops import forward_flops, step_flops
from nasgrow.search.baselines import baselines
from nasgrow.search.config import Pruner
from nasgrow.search.grid import points
from nasgrow.search.samplers import FULL, trial_seed
from nasgrow.search.spaces import Point, Space
from nasgrow.search.study import Study
from nasgrow.search.taking_up import Parted
from nasgrow.search.tree.branches import Book, Branch, Branches, Learned, Ways, fitted
from nasgrow.search.tree.leaves import RUNGS, Leaf, Leaves, leaf, stops
from nasgrow.search.tree.passed import Passed
from nasgrow.search.tree.profile import Profiles, distances
from nasgrow.search.tree.sample import Sample
from nasgrow.search.tree.value import Belief, deviation

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Truths = NDArray[np.bool_]

LISTED = 5_000
"""A space of so many points is considered whole; of larger ones a sample, a part of it new for each trial."""

PARENTS = 8
"""The best branches, of which a sample has variations."""

PRICED = 64
"""Points whose price may be asked for, the most promising ones: to know one takes milliseconds."""

OFFERED = 100
"""Branches that were left and are considered again: those that are expected to become the best."""


@dataclass(frozen=True)
class Grown:
    """A tree so far, as it is asked about.

    Attributes:
        ended: The trials of the search that were completed or given up, by their numbers; the same object as
            long as they are the same.
        live: Those that are being trained, or wait to be.
        given_up: The numbers of those that cannot be taken up although they were left.
        dead: The parameters of points whose workers died too often: they are not offered again.
        number: That of the trial to come, or of the one that is asked about; decides where nothing else does.
        price: The FLOPs that a point would execute now, if that is known.
        full: Whether no further point may be begun. Then a branch goes on only if it is expected to become
            the best.
    """

    ended: Sequence[FrozenTrial]
    live: Sequence[FrozenTrial]
    given_up: Collection[int]
    dead: Sequence[Mapping[str, Any]]
    number: int
    price: Callable[[Mapping[str, Any]], float] | None
    full: bool


@dataclass(frozen=True)
class _Seen:
    """The branches of a tree: the numbers of those that ended, and those that are being trained."""

    ended: tuple[int, ...]
    live: Sequence[Branch]

    def __len__(self) -> int:
        return len(self.ended) + len(self.live)


@dataclass(frozen=True)
class _New:
    """Points that a trial may be begun with.

    Attributes:
        leaves: Points of the space.
        offered: Which of them may be: those that nobody has, each once.
    """

    leaves: Leaves
    offered: Truths


@dataclass(frozen=True)
class _Believed:
    """What branches that ended tell of points, before anything else ends.

    Attributes:
        learned: What they tell.
        leaves: New points, if there are any.
        given_up: The numbers of branches that cannot be taken up although they were left.
        left: The places, among those that ended, of branches that could go on; these come first.
        belief: What is believed of all.
        ways: What is known of the ways of new points.
        places: Of all and each stop, what is equal for points that share their training until there.
        passed: The fraction of the budget until which branches that ended passed the way of each; filled in
            where somebody asks, not a number elsewhere.
        fixed: Which of all start from the shape of a baseline.
        trained: The fraction of the budget until which each branch was trained.
    """

    learned: Learned
    leaves: Leaves | None
    given_up: Collection[int]
    left: Integers
    belief: Belief
    ways: Ways
    places: Integers
    passed: Floats
    fixed: Truths
    trained: Floats


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
        self._fixed = np.array([hash(size.shape) for size in baselines(study)], np.int64)
        # A run ends up to a step before its budget does, and comes to a rung up to a step after.
        training, largest = study.config.training, study.space.largest
        sizes = study.config.variant, training.sequences, training.context
        self._rounding = 2 * step_flops(largest, *sizes, muon=training.optimizer == "muon")
        self._ways: dict[int, tuple[Leaf, tuple[float, ...]]] = {}
        self._book = Book()
        self._stops = stops(study.space.times)
        self._passed = Passed(self._stops)
        self._alone = True  # as far as is known, nobody else stores what points would share
        self._ended: tuple[Sequence[FrozenTrial], tuple[int, ...]] = (), ()
        self._learned: tuple[tuple[int, ...], Learned] | None = None
        self._fitted = 0, 0
        self._believed: _Believed | None = None
        self._open: _New | None = None
        self._open_to: tuple[int, ...] = ()

    def next(self, grown: Grown) -> FrozenTrial | Mapping[str, Any] | None:
        """What to train next: a trial that was left, the parameters of a new point, or nothing."""
        return self._next(self._seen(grown.ended, grown.live), grown, None)

    def goes_on(self, grown: Grown, trial: FrozenTrial) -> bool:
        """Whether a branch that has come to a rung is still what should be trained."""
        seen = self._seen(grown.ended, grown.live)
        own = next((one for one in seen.live if one.trial.number == trial.number), None)
        if own is None:
            return True  # it was taken away from its worker, who will notice as soon as it writes
        ended = self._book.of(seen.ended) if seen.ended else None
        if ended is None or ended.whole < max(2, self._startup) or self._trained_ahead(own, ended, seen.live):
            return True
        return self._next(seen, grown, own) is own.trial

    def _next(self, seen: _Seen, grown: Grown, own: Branch | None) -> FrozenTrial | Mapping[str, Any] | None:
        """What to train next; a branch that has come to a rung may go on, too."""
        new = None if grown.full else self._new(seen, grown)
        if len(seen) < self._startup or not seen.ended or self._book.of(seen.ended).whole < 2:
            return None if new is None else self._farthest(seen, new, grown.number)
        return self._best(seen, new, grown, own)

    @staticmethod
    def _trained_ahead(own: Branch, ended: Branches, live: Sequence[Branch]) -> bool:
        """Whether another branch has trained the way to the next rung, so that going on costs nothing."""
        rung = sum(loss is not None for loss in own.losses)
        if rung == len(RUNGS):
            return False
        node = own.leaf.nodes[rung]
        return bool(((ended.nodes[:, rung] == node) & ~np.isnan(ended.losses[:, rung])).any()) or any(
            one.leaf.nodes[rung] == node and one.losses[rung] is not None for one in live if one is not own
        )

    @property
    def finite(self) -> bool:
        """Whether the space is considered whole, so that it can be exhausted."""
        return self._whole is not None

    def exhausted(self, parted: Parted, dead: Sequence[Mapping[str, Any]]) -> bool:
        """Whether these and those that are not offered again are all points of a space considered whole."""
        assert self._whole is not None
        seen = self._seen(parted.ended, parted.live)
        keys = self._book.of(seen.ended).keys.tolist() if seen.ended else []
        return len({*keys, *self._taken(seen, dead)}) == len(self._whole.keys)

    @property
    def _startup(self) -> int:
        return self._study.config.sampler.startup

    def _leaf(self, parameters: Mapping[str, Any]) -> Leaf:
        return self._leaf_of(self._study.space.at(parameters), parameters)

    def _leaf_of(self, point: Point, parameters: Mapping[str, Any]) -> Leaf:
        return leaf(point, parameters, self._study.space.times, self._study.config.pruner)

    def _seen(self, ended: Sequence[FrozenTrial], live: Sequence[FrozenTrial]) -> _Seen:
        """The trials as branches; what does not change of one is computed once."""
        if self._ended[0] is not ended:
            written = self._book.written
            for trial in [one for one in ended if one.number not in written]:
                branch = self._branch(trial)
                if branch is not None:
                    self._book.write(branch)
                    self._passed.add(branch.leaf.way, branch.trained)
            self._ended = ended, tuple([one.number for one in ended if one.number in written])
        branches = map(self._branch, live)
        return _Seen(self._ended[1], [branch for branch in branches if branch is not None])

    def _branch(self, trial: FrozenTrial) -> Branch | None:
        """A trial as a branch, if all its parameters are known."""
        if trial.number not in self._ways:
            parameters = self._parameters(trial)
            if parameters is None:
                return None
            point = self._study.space.at(parameters)
            self._ways[trial.number] = self._leaf_of(point, parameters), self._sizes(point)
        return Branch(trial, *self._ways[trial.number])

    def _sizes(self, point: Point) -> tuple[float, ...]:
        """The logarithm of a step's FLOPs at each rung."""
        schedule = point.schedule
        shapes = [schedule.shapes[sum(event.at < rung / 100 for event in schedule.events)] for rung in RUNGS]
        variant = self._study.config.variant
        return tuple(math.log2(forward_flops(shape, variant, 1, shape.context)) for shape in shapes)

    def _taken(self, seen: _Seen, dead: Sequence[Mapping[str, Any]]) -> list[int]:
        """The keys of branches that are being trained, and of what is not offered again."""
        return [*(one.leaf.key for one in seen.live), *(self._leaf(one).key for one in dead)]

    def _new(self, seen: _Seen, grown: Grown) -> _New | None:
        """Points that no trial has."""
        leaves = self._whole
        if leaves is None:
            leaves = self._sample.leaves(self._parents(seen), grown.number)
        if self._open is None or self._open.leaves is not leaves or self._open_to is not seen.ended:
            once = once_each(leaves.keys)
            if seen.ended:
                once &= ~np.isin(leaves.keys, self._book.of(seen.ended).keys)
            self._open, self._open_to = _New(leaves, once), seen.ended
        offered = self._open.offered & ~np.isin(leaves.keys, self._taken(seen, grown.dead))
        if self._whole is None and seen.ended and not offered.any():
            # A large space may have few points: to take one that has a result costs nothing.
            ended = self._book.of(seen.ended)
            left = _can_go_on(ended, grown.given_up)
            known = np.setdiff1d(ended.keys[~left], ended.keys[left])
            offered = once_each(leaves.keys) & np.isin(leaves.keys, known)
        return _New(leaves, offered) if offered.any() else None

    def _parents(self, seen: _Seen) -> list[Branch]:
        """The branches to vary: the best, or any while there are none."""
        if not seen.ended:
            return list(seen.live[:PARENTS])
        order = np.argsort(self._book.of(seen.ended).ends, kind="stable")  # those without a loss come last
        return [self._book.written[seen.ended[place]] for place in order[:PARENTS]]

    def _farthest(self, seen: _Seen, new: _New, number: int) -> Mapping[str, Any]:
        """The point that is farthest from all branches."""
        if not len(seen):
            rng = np.random.default_rng(trial_seed(self._study.config.name, number))
            return new.leaves.parameters[int(rng.choice(np.flatnonzero(new.offered)))]
        there = [*(self._book.written[one].leaf for one in seen.ended), *(one.leaf for one in seen.live)]
        away = distances(new.leaves.profiles, Profiles.of([one.profile for one in there]))
        nearest = np.where(new.offered, away.sum(axis=0).min(axis=1), -1.0)
        return new.leaves.parameters[int(nearest.argmax())]

    def _best(
        self, seen: _Seen, new: _New | None, grown: Grown, own: Branch | None
    ) -> FrozenTrial | Mapping[str, Any] | None:
        """What has the largest expected improvement for each FLOP that is left of it."""
        believed = self._believe(self._learn(seen.ended), new, grown.given_up)
        learned, count = believed.learned, len(believed.left)
        fresh = slice(count, len(believed.belief.mean))
        live = Branches.of(seen.live) if seen.live else learned.ended.at(np.zeros(0, np.int64))
        mean, deviation = self._predict(believed, live, own)
        if not len(mean):
            return None
        if new is not None:
            ways = believed.ways.also(Ways.of(new.leaves.nodes, live))
            learned.look_up(ways, new.leaves.told, mean[fresh], deviation[fresh])
        promise = log_improvement(mean, deviation, learned.best)
        if new is None:
            promise = np.where(mean < learned.best, promise, -np.inf)
        else:
            promise[fresh][~new.offered] = -np.inf
            promise[count + np.argsort(-promise[fresh], kind="stable")[PRICED:]] = -np.inf
        budget, seeds = self._study.budget, len(self._study.config.seeds)
        floors, known = self._floors(believed, promise[: fresh.stop], seen.live, own)

        def price(place: int) -> float:
            if known[place] or grown.price is None:
                return float(floors[place])
            asked = grown.price(self._parameters_at(believed, place))
            self._alone = self._alone and asked >= floors[place]
            return asked

        if grown.price is None:  # then others have nothing of a point, and each branch what it has trained
            floors[:count] = (seeds - believed.trained) * budget
            floors[fresh] = seeds * budget
        place = worth(promise, floors, price, budget / 1000)
        if place is None:
            return None
        if place == fresh.stop and own is not None:
            return own.trial
        return self._left(believed, place).trial if place < count else self._parameters_at(believed, place)

    def _floors(
        self, believed: _Believed, promise: Floats, live: Sequence[Branch], own: Branch | None
    ) -> tuple[Floats, Truths]:
        """The FLOPs that points would execute at least, and whether they would execute just that.

        That follows from how far branches have passed their ways. Where that does not hold, because others
        have stored more of some way, nothing is taken for granted any more. How far baselines are, which are
        the beginning of schedules, is not known here. A branch that is at a rung has its state, and one that
        was left if it kept it for itself: what is kept for all in trunks may have been removed.
        """
        budget, seeds, count = self._study.budget, len(self._study.config.seeds), len(believed.left)
        passed, known = np.full(len(promise), self._stops[-1]), np.zeros(len(promise), np.bool_)
        if self._study.config.trunks is None:
            passed[:], passed[:count], known[:count] = 0.0, believed.trained, True
        elif self._alone:
            others = Passed(self._stops)
            for one in live:
                others.add(one.leaf.way, one.trained)
            # Who promises so little that nothing but the end of its way may be left is not looked for.
            most = promise.max(initial=-math.inf) + math.log(1 - self._stops[-1]) - 0.1
            which = np.flatnonzero(np.isfinite(promise) & (promise >= most))
            unknown = which[np.isnan(believed.passed[which])]
            believed.passed[unknown] = self._passed.until(believed.places[unknown])
            passed[which] = np.maximum(believed.passed[which], others.until(believed.places[which]))
            passed[believed.fixed] = 1.0
        else:
            passed[:] = 1.0
        floors = np.where(known, (seeds - passed) * budget, ((1 - passed) * budget - self._rounding) * seeds)
        if own is not None:
            rest = (seeds - max(own.trial.intermediate_values, default=0) / FULL) * budget
            floors, known = np.append(floors, rest), np.append(known, True)
        return floors, known

    def _left(self, believed: _Believed, place: int) -> Branch:
        return self._book.written[int(believed.learned.ended.numbers[believed.left[place]])]

    def _parameters_at(self, believed: _Believed, place: int) -> Mapping[str, Any]:
        """The parameters of what stands at a place: a branch that was left, or a new point."""
        if place < len(believed.left):
            return self._left(believed, place).leaf.parameters
        assert believed.leaves is not None
        return believed.leaves.parameters[place - len(believed.left)]

    def _learn(self, ended: tuple[int, ...]) -> Learned:
        """What branches that ended tell, worked out once."""
        if self._learned is None or self._learned[0] != ended:
            branches = self._book.of(ended)
            counts = fitted(len(ended)), fitted(branches.whole)
            due = counts[0] > self._fitted[0] or counts[1] > self._fitted[1]
            weights = None if due or self._learned is None else self._learned[1].weights
            self._learned = ended, Learned(branches, weights)
            # There may be fewer for a while: those that are taken up have not ended.
            self._fitted = max(counts[0], self._fitted[0]), max(counts[1], self._fitted[1])
        return self._learned[1]

    def _believe(self, learned: Learned, new: _New | None, given_up: Collection[int]) -> _Believed:
        """What is believed of what could be trained before anything else ends, worked out once."""
        ended, leaves, before = learned.ended, None if new is None else new.leaves, self._believed
        if (
            before is None
            or before.learned is not learned
            or before.leaves is not leaves
            or before.given_up != given_up
        ):
            left = np.flatnonzero(_can_go_on(ended, given_up))
            if len(left) > OFFERED:
                left = np.sort(left[np.argsort(learned.finals[left], kind="stable")[:OFFERED]])
            profiles, starts, places = ended.profiles(left), ended.starts[left], ended.ways[left]
            nodes = np.zeros((0, len(RUNGS)), np.int64)
            if leaves is not None:
                profiles = Profiles.joined([profiles, leaves.profiles])
                starts = np.concatenate([starts, leaves.starts])
                places = np.concatenate([places, leaves.ways])
                nodes = leaves.nodes
            came = (~np.isnan(ended.losses[left])).sum(axis=1)
            self._believed = before = _Believed(
                learned,
                leaves,
                given_up,
                left,
                learned.process.believe(profiles),
                Ways.of(nodes, ended),
                places,
                np.full(len(places), np.nan),
                np.isin(starts, self._fixed),
                np.array([0, *RUNGS])[came] / FULL,
            )
        return before

    def _predict(self, believed: _Believed, live: Branches, own: Branch | None) -> tuple[Floats, Floats]:
        """The mean and the standard deviation of final losses, with what live branches have come to.

        A branch that has come to a rung is the last of them.
        """
        learned, beliefs = believed.learned, [believed.belief]
        if own is not None:
            beliefs.append(learned.process.believe(Profiles.of([own.leaf.profile])))
        if len(live.numbers):
            finals, variances = learned.expected(live)
            known = ~np.isnan(finals)
            first = np.concatenate([np.flatnonzero(known), np.flatnonzero(~known)])
            losses, noise = learned.scaled(finals[known], variances[known])
            mean, explained = learned.process.updated(beliefs, live.profiles(first), losses, noise)
        else:
            mean, explained = believed.belief.mean, believed.belief.explained
        return learned.unscaled(mean, deviation(explained))


def once_each(keys: Integers) -> Truths:
    """Which of some keys stand first of their kind."""
    once = np.zeros(len(keys), np.bool_)
    once[np.unique(keys, return_index=True)[1]] = True
    return once


def _can_go_on(ended: Branches, given_up: Collection[int]) -> Truths:
    """Which of some branches that ended can be taken up."""
    return ended.left & ~np.isin(ended.numbers, list(given_up)) if given_up else ended.left


def worth(promise: Floats, floors: Floats, price: Callable[[int], float], least: float) -> int | None:
    """The place of what promises the most for each FLOP; None if nothing promises anything.

    To know a price takes milliseconds. What costs at least so much that it cannot be worth the most is not
    asked for its own.

    Args:
        promise: The logarithms of expected improvements.
        floors: What each costs at least. It follows from how far branches know its way; if another study has
            trained more of it, it may be taken for dearer than it is.
        price: What the one at a place costs.
        least: What is cheaper counts as much.
    """
    bounds = promise - np.log(np.maximum(least, floors))
    best, most = None, -math.inf
    for place in np.argsort(-bounds, kind="stable").tolist():
        if bounds[place] <= most:
            break
        score = promise[place] - math.log(max(least, price(place)))
        if score > most:
            best, most = place, score
    return best


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
