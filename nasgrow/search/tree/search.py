"""What a tree search trains next: a new branch, or one that was left, until the next rung.

Every trial is a branch of the tree of schedules; it parts from others where its events do, and pays for what
no other has trained. At each rung the question is put anew: of this branch, of all that were left, and of all
that nobody has begun, the one is trained on whose expected improvement over the best final loss is largest
for each FLOP that is left of it. The first few branches are trained to their end, far apart from each other:
what they come to is what losses at rungs are judged by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from heapq import nsmallest
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from nasgrow.flops import forward_flops
from nasgrow.search.grid import points
from nasgrow.search.samplers import FULL, trial_seed
from nasgrow.search.spaces import Point, Space
from nasgrow.search.spaces.training import FROM_THE_START, OPERATOR_FIELDS
from nasgrow.search.study import Study
from nasgrow.search.taking_up import taken_up
from nasgrow.search.tree.outlook import Outlook
from nasgrow.search.tree.profile import Profile, distances, profile
from nasgrow.search.tree.value import predict, weigh

Floats = NDArray[np.float64]
Draw = Callable[[int, int], list[dict[str, Any]]]
"""Random points: how many, and the seed."""

Expected = tuple[float | None, float]
"""The final loss of a branch, unless nothing tells it yet, and its variance."""

RUNGS = 20, 40, 60, 80
"""The percents of the budget at which it is asked again what to train."""

LISTED = 5_000
"""A space of so many points is considered whole; of larger ones a sample, a part of it new for each trial."""

FRESH, VARIED, PARENTS, PARTS = 40, 8, 8, 5
"""A part of a sample: points from all over the space, and variations of each of the best branches, which
begin like them. The latest parts are considered together, so that few points are decoded for each trial: that
takes milliseconds."""

PRICED = 64
"""Points whose price is asked for, the most promising ones: to know one takes milliseconds."""

OBSERVED = 200
"""Branches that are learned from: the best and the latest."""

OFFERED = 100
"""Branches that were left and are considered again: those that are expected to become the best."""

REMEMBERED = 20_000
"""Times of events of which is remembered at which rungs their losses tell something."""


@dataclass(frozen=True)
class Leaf:
    """A point as the end of a way through the tree.

    Attributes:
        key: Equal for points that mean the same runs; a hash, as whole schedules take long to compare.
        parameters: What it is decoded from.
        profile: What it is compared by.
        events: The times of its events.
        nodes: For each rung, what is equal for points that share their training until there; hashes too.
    """

    key: int
    parameters: Mapping[str, Any]
    profile: Profile
    events: tuple[float, ...]
    nodes: tuple[int, ...]


def leaf(space: Space, parameters: Mapping[str, Any]) -> Leaf:
    """The leaf of a point."""
    point = space.at(parameters)
    nodes = tuple(_node(point, rung / FULL) for rung in RUNGS)
    events = tuple(event.at for event in point.schedule.events)
    return Leaf(hash(point.key), parameters, profile(point, parameters, space.times), events, nodes)


def _node(point: Point, fraction: float) -> int:
    """What is equal for points that share their training until a fraction of the budget.

    What acts at events only counts from the first on, and an operator where an event has none of its own, as
    in the keys of states (:mod:`nasgrow.training.trunks.keys`).
    """
    begun = [event for event in point.schedule.events if event.at < fraction - 1e-9]
    acting = point.acting if begun else {}
    if all(event.operator for event in begun):
        acting = {name: value for name, value in acting.items() if name not in OPERATOR_FIELDS}
    first = {name: value for name, value in point.training.items() if name in FROM_THE_START}
    return hash((point.schedule.start, tuple(begun), tuple(sorted({**acting, **first}.items()))))


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

    def at(self, rung: int) -> float | None:
        """The loss at a rung, if it came there."""
        return self._losses[rung]

    @cached_property
    def _losses(self) -> tuple[float | None, ...]:
        """The loss at each rung."""
        told = sorted(self.trial.intermediate_values.items())
        return tuple(next((loss for step, loss in told if step >= rung), None) for rung in RUNGS)


@dataclass(frozen=True)
class Grown:
    """A tree so far, as it is asked about.

    Attributes:
        trials: The trials of the search that count, and their parameters.
        left: Those that can be taken up.
        dead: The parameters of points whose workers died too often: they are not offered again.
        number: How many trials there were in all; decides where nothing else does.
        price: The FLOPs that a point would execute now, if that is known.
        full: Whether no further point may be begun. Then a branch goes on only if it is expected to become
            the best.
    """

    trials: Sequence[tuple[FrozenTrial, Mapping[str, Any]]]
    left: Sequence[FrozenTrial]
    dead: Sequence[Mapping[str, Any]]
    number: int
    price: Callable[[Mapping[str, Any]], float] | None
    full: bool


class Tree:
    """The tree of a study.

    Args:
        study: The study.
        draw: Draws random points of its space.
        recovered: Whether a loss at a fraction of the budget tells something, given the times of events.
    """

    def __init__(self, study: Study, draw: Draw, recovered: Callable[[Iterable[float], float], bool]) -> None:
        self._study, self._draw = study, draw
        self._recovered = lru_cache(REMEMBERED)(recovered)
        self._whole = _listed(study.space) if study.space.size <= LISTED else None
        self._ways: dict[int, tuple[Leaf, tuple[float, ...]]] = {}
        self._ended: dict[int, Branch] = {}
        self._drawn: dict[tuple[int, int | None], list[Leaf]] = {}

    def next(self, grown: Grown) -> FrozenTrial | Mapping[str, Any] | None:
        """What to train next: a trial that was left, the parameters of a new point, or nothing."""
        seen = self._known(grown.trials)
        new = [] if grown.full else self._new(seen, grown)
        if len(seen) < self._startup or sum(one.loss is not None for one in seen) < 2:
            return self._farthest(seen, new, grown.number)
        numbers = {trial.number for trial in grown.left}
        again = [one for one in seen if one.trial.number in numbers]
        found = self._best(seen, again, new, grown.price)
        return found.trial if isinstance(found, Branch) else None if found is None else found.parameters

    def goes_on(self, grown: Grown, trial: FrozenTrial) -> bool:
        """Whether a branch that has come to a rung is still what should be trained."""
        ended = [one for one, _ in grown.trials if one.state == TrialState.COMPLETE]
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
        rung = sum(own.at(rung) is not None for rung in range(len(RUNGS)))
        others = [one for one in seen if one.trial.number != number]
        return rung < len(RUNGS) and any(
            one.leaf.nodes[rung] == own.leaf.nodes[rung] and one.at(rung) is not None for one in others
        )

    @property
    def finite(self) -> bool:
        """Whether the space is considered whole, so that it can be exhausted."""
        return self._whole is not None

    def exhausted(
        self, trials: Sequence[tuple[FrozenTrial, Mapping[str, Any]]], dead: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Whether these and those that are not offered again are all points of a space considered whole."""
        assert self._whole is not None
        return len(self._keys(self._known(trials), dead)) == len(self._whole)

    @property
    def _startup(self) -> int:
        return self._study.config.sampler.startup

    def _known(self, trials: Sequence[tuple[FrozenTrial, Mapping[str, Any]]]) -> list[Branch]:
        """The trials as branches; what does not change of one is computed once."""
        found = []
        for trial, parameters in trials:
            number = trial.number
            if number not in self._ways:
                self._ways[number] = leaf(self._study.space, parameters), self._sizes(parameters)
            branch = self._ended.get(number) or Branch(trial, *self._ways[number])
            if trial.state.is_finished():
                self._ended[number] = branch
            found.append(branch)
        return found

    def _sizes(self, parameters: Mapping[str, Any]) -> tuple[float, ...]:
        """The logarithm of a step's FLOPs at each rung."""
        schedule = self._study.space.at(parameters).schedule
        shapes = [schedule.shapes[sum(event.at < rung / 100 for event in schedule.events)] for rung in RUNGS]
        variant = self._study.config.variant
        return tuple(math.log2(forward_flops(shape, variant, 1, shape.context)) for shape in shapes)

    def _keys(self, seen: Sequence[Branch], dead: Sequence[Mapping[str, Any]]) -> set[int]:
        """The keys of branches, and of what is not offered again."""
        return {*(one.leaf.key for one in seen), *(leaf(self._study.space, one).key for one in dead)}

    def _new(self, seen: Sequence[Branch], grown: Grown) -> list[Leaf]:
        """Points that no trial has."""
        there = self._keys(seen, grown.dead)
        if self._whole is not None:
            return [one for one in self._whole if one.key not in there]
        found = {one.key: one for one in self._sample(seen, grown.number)}
        new = [one for key, one in found.items() if key not in there]
        # A large space may have few points: to take one that has a result costs nothing.
        known = {one.leaf.key for one in seen if one.trial.state.is_finished()} - {
            self._ways[one.number][0].key for one in grown.left
        }
        return new or [one for key, one in found.items() if key in known]

    def _sample(self, seen: Sequence[Branch], number: int) -> list[Leaf]:
        """Points of a large space, the same for the same number of trials and the same best branches."""
        best = sorted(seen, key=lambda one: math.inf if one.loss is None else one.loss)[:PARENTS]
        parents: dict[int | None, Branch | None] = {None: None, **{one.origin: one for one in best}}
        wanted = product(range(max(0, number - PARTS + 1), number + 1), parents)
        self._drawn = {
            (part, origin): self._drawn.get((part, origin)) or self._part(part, origin, parents[origin])
            for part, origin in wanted
        }
        return [one for some in self._drawn.values() for one in some]

    def _part(self, part: int, origin: int | None, parent: Branch | None) -> list[Leaf]:
        """A part of a sample: from all over the space, or variations of a branch."""
        name = self._study.config.name
        if parent is None:
            drawn = self._draw(FRESH, trial_seed(name, part))
        else:
            seed, given = trial_seed(f"{name}/{origin}", part), parent.leaf.parameters
            rng = np.random.default_rng(seed)
            drawn = []
            for other in self._draw(VARIED, seed):
                changed = rng.random(len(given)) < 2 / len(given)
                changed[rng.integers(len(given))] = True
                drawn.append({n: other[n] if c else given[n] for n, c in zip(given, changed, strict=True)})
        return [leaf(self._study.space, parameters) for parameters in drawn]

    def _farthest(self, seen: Sequence[Branch], new: Sequence[Leaf], number: int) -> Mapping[str, Any] | None:
        """The point that is farthest from all branches."""
        if not new:
            return None
        if not seen:
            rng = np.random.default_rng(trial_seed(self._study.config.name, number))
            return new[int(rng.integers(len(new)))].parameters
        away = distances([one.profile for one in new], [one.leaf.profile for one in seen])
        return new[int(away.sum(axis=0).min(axis=1).argmax())].parameters

    def _best(
        self,
        seen: Sequence[Branch],
        again: Sequence[Branch],
        new: Sequence[Leaf],
        price: Callable[[Mapping[str, Any]], float] | None,
    ) -> Branch | Leaf | None:
        """What has the largest expected improvement for each FLOP that is left of it."""
        outlooks = self._outlooks(seen)
        expected = {one.trial.number: self._expected(one, seen, outlooks) for one in seen}
        again = _offered(again, expected)
        offers: list[Branch | Leaf] = [*again, *new]
        if not offers:
            return None
        leaves = [*(one.leaf for one in again), *new]
        mean, deviation = self._predict(seen, expected, [one.profile for one in leaves])
        self._look_up(seen, outlooks, new, mean[len(again) :], deviation[len(again) :])
        best = min(one.loss for one in seen if one.loss is not None)
        promise = log_improvement(mean, deviation, best)
        if not new:
            promise = np.where(mean < best, promise, -np.inf)
        order = np.argsort(-promise, kind="stable")
        listed = [int(place) for place in order if place < len(again)]
        listed += [int(place) for place in order if place >= len(again)][:PRICED]
        least = self._study.budget / 1000
        scores = {
            place: promise[place] - math.log(max(least, price(leaves[place].parameters) if price else 1.0))
            for place in listed
        }
        place = max(listed, key=lambda place: float(scores[place]))
        return offers[place] if math.isfinite(promise[place]) else None

    def _predict(
        self, seen: Sequence[Branch], expected: Mapping[int, Expected], asked: Sequence[Profile]
    ) -> tuple[Floats, Floats]:
        """The mean and the standard deviation of final losses, from those of branches and their outlooks."""
        observed = [(one, *expected[one.trial.number]) for one in seen]
        known = sorted((one for one in observed if one[1] is not None), key=lambda one: float(one[1] or 0.0))
        if len(known) > OBSERVED:
            latest = sorted(known[OBSERVED // 2 :], key=lambda one: one[0].trial.number)
            known = known[: OBSERVED // 2] + latest[-(OBSERVED // 2) :]
        ends = [one.loss for one in seen if one.loss is not None]
        level, scale = float(np.mean(ends)), max(1e-3, float(np.std(ends)))
        losses = (np.array([loss for _, loss, _ in known], float) - level) / scale
        noise = np.array([variance for _, _, variance in known]) / scale**2
        profiles = [one.leaf.profile for one, _, _ in known]
        apart = distances(profiles, profiles)
        weights = weigh(apart, losses, noise)
        pending = [one.leaf.profile for one, loss, _ in observed if loss is None]
        if pending:  # believed to come to what is expected, so that others look elsewhere
            believed, _ = predict(weights, apart, losses, noise, distances(pending, profiles))
            profiles += pending
            losses = np.concatenate([losses, believed])
            noise = np.concatenate([noise, np.zeros(len(pending))])
            apart = distances(profiles, profiles)
        mean, deviation = predict(weights, apart, losses, noise, distances(asked, profiles))
        return level + scale * mean, scale * deviation

    def _outlooks(self, seen: Sequence[Branch]) -> list[Outlook | None]:
        """What losses at each rung tell, where at least two branches that ended say so."""
        found: list[Outlook | None] = []
        for rung in range(len(RUNGS)):
            told = [(one.at(rung), one.sizes[rung], one.loss) for one in seen if self._told(one.leaf, rung)]
            whole = [(loss, size, end) for loss, size, end in told if loss is not None and end is not None]
            found.append(Outlook(*zip(*whole, strict=True)) if len(whole) > 1 else None)
        return found

    def _expected(
        self, branch: Branch, seen: Sequence[Branch], outlooks: Sequence[Outlook | None]
    ) -> Expected:
        """The final loss of a branch and its variance: known, expected, or unknown yet."""
        if branch.loss is not None:
            return branch.loss, 0.0
        if branch.trial.user_attrs.get("status") == "diverged":
            return max(one.loss for one in seen if one.loss is not None), 0.0
        for rung in reversed(range(len(RUNGS))):
            loss, outlook = branch.at(rung), outlooks[rung]
            if loss is not None and outlook is not None and self._told(branch.leaf, rung):
                return outlook.final(loss, branch.sizes[rung])
        return None, 0.0

    def _look_up(
        self,
        seen: Sequence[Branch],
        outlooks: Sequence[Outlook | None],
        new: Sequence[Leaf],
        mean: Floats,
        deviation: Floats,
    ) -> None:
        """Let new points that part from a branch after a rung know of its loss there: in place."""
        known = [{one.leaf.nodes[rung]: one for one in seen if one.at(rung)} for rung in range(len(RUNGS))]
        finals: dict[tuple[int, int], tuple[float, float]] = {}
        for place, one in enumerate(new):
            for rung in reversed(range(len(RUNGS))):
                node, outlook = known[rung].get(one.nodes[rung]), outlooks[rung]
                if node is None or outlook is None or not self._told(one, rung):
                    continue
                way = rung, one.nodes[rung]
                if way not in finals:
                    finals[way] = outlook.final(node.at(rung) or 0.0, node.sizes[rung])
                final, variance = finals[way]
                precision = deviation[place] ** -2, 1 / variance
                mean[place] = (mean[place] * precision[0] + final * precision[1]) / sum(precision)
                deviation[place] = sum(precision) ** -0.5
                break

    def _told(self, one: Leaf, rung: int) -> bool:
        return self._recovered(one.events, RUNGS[rung] / 100)


def _offered(again: Sequence[Branch], expected: Mapping[int, Expected]) -> list[Branch]:
    """Of many branches that could go on those that promise the most, and the one that is at a rung."""
    if len(again) <= OFFERED:
        return list(again)

    def order(branch: Branch) -> tuple[bool, float]:
        final, _ = expected[branch.trial.number]
        return branch.trial.state != TrialState.RUNNING, math.inf if final is None else final

    kept = {one.trial.number for one in nsmallest(OFFERED, again, key=order)}
    return [one for one in again if one.trial.number in kept]


@lru_cache(maxsize=4)
def _listed(space: Space) -> tuple[Leaf, ...]:
    """Every point of a space."""
    return tuple(leaf(space, parameters) for parameters in points(space).values())


def log_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """The logarithm of the expected improvement of normal variables over the best value.

    It is s (phi(z) + z Phi(z)) with z = (best - mean) / s (Jones et al. 1998, equation 15); far below, where
    that is lost to rounding, s phi(z) / z**2.
    """
    z = (best - mean) / deviation
    density = np.exp(-np.square(z) / 2) / math.sqrt(2 * math.pi)
    below = np.array([math.erfc(-one / math.sqrt(2)) / 2 for one in z])
    far = -np.square(z) / 2 - math.log(math.sqrt(2 * math.pi)) - 2 * np.log(np.maximum(1.0, -z))
    near = np.log(np.maximum(1e-300, density + z * below))
    return np.asarray(np.log(deviation) + np.where(z < -5, far, near))
