"""Tree search: branches that are trained from rung to rung, where they promise the most for what is left."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from nasgrow.search.config import Pruner, Sampler, load_study
from nasgrow.search.ledger import Ledger
from nasgrow.search.objective import pursue
from nasgrow.search.outcome import Setting
from nasgrow.search.replay import Replayed, Simulated, _search, in_memory, replay
from nasgrow.search.spaces import Space
from nasgrow.search.storage import RETRIES
from nasgrow.search.summary import summarise
from nasgrow.search.tree.branches import FITTED_ANEW, OBSERVED, Book, Branch, Branches, Learned, Ways, fitted
from nasgrow.search.tree.leaves import RUNGS, Leaf, Leaves, leaf, stops
from nasgrow.search.tree.outlook import Outlook
from nasgrow.search.tree.passed import Passed
from nasgrow.search.tree.profile import Metric, Profile, Profiles, distances, profile
from nasgrow.search.tree.sample import FRESH, PARTS, TURNS, Sample
from nasgrow.search.tree.search import LISTED, OFFERED, Tree, log_improvement, worth
from nasgrow.search.tree.value import NUGGET, Process, deviation, weigh
from nasgrow.search.trials import read_trials
from nasgrow.search.trunks import open_prices, open_trunks
from tests.search.asking import RandomTrial, space
from tests.search.made import made_table
from tests.search.studies import FINAL, SPACE, begin_study, write_study
from tests.search.test_ledger import another, grow_stale
from tests.search.test_objective import nothing, setting_of
from tests.search.test_taking_up import ONE

SIDES: dict[str, Any] = {
    "kind": "per-dimension",
    "dims": {"hidden": {"start": [1, 0.5]}, "layers": {"start": [1, 0.5]}},
    "times": {"low": 0.2, "high": 0.8, "step": 0.2},
    "training": {"learning_rate.peak": [0.01, 0.02], "operator": ["preserve", "gradmax"]},
}


def apart(changes: dict[str, Any]) -> dict[str, float]:
    """The distances of a point from one that differs, by what they are in."""
    bound = space(SIDES)
    start = {"start.hidden": 0.5, "at.hidden": 0.2, "start.layers": 1, "at.layers": 0.2}
    here = {**start, "learning_rate.peak": 0.01, "operator": "preserve"}
    there = {**here, **changes}
    ours, theirs = (Profiles.of([profile(bound.at(one), one, bound.times)]) for one in (here, there))
    names = ["hidden", "layers", "mlp", "heads", "key", "value", "rate", "operator"]
    found = dict(zip(names, distances(ours, theirs)[:, 0, 0], strict=True))
    return {name: value for name, value in found.items() if value}


def test_points_are_as_far_apart_as_their_shapes_for_as_long_as_they_are() -> None:
    assert apart({}) == {}
    assert apart({"at.hidden": 0.4}) == {"hidden": pytest.approx(0.2)}
    assert apart({"at.hidden": 0.8}) == {"hidden": pytest.approx(0.6)}
    assert apart({"at.layers": 0.8}) == {}, "they do not grow"
    assert apart({"start.layers": 0.5, "at.layers": 0.4}) == {"layers": pytest.approx(0.4)}
    assert apart({"operator": "gradmax"}) == {"operator": 1.0}
    assert apart({"learning_rate.peak": 0.02}) == {"rate": pytest.approx(1.0)}


def drawn(count: int) -> list[Profile]:
    """The profiles of random points of a space with settings of both kinds."""
    given: dict[str, Any] = {
        "learning_rate.peak": {"low": 0.001, "high": 0.1, "log": True},
        "moments": ["fresh-new", "reset"],
    }
    bound = space({**SIDES, "training": {**SIDES["training"], **given}})
    trials = [RandomTrial(seed) for seed in range(count)]
    return [profile(bound.sample(trial), {**trial.asked}, bound.times) for trial in trials]


def test_distances_are_those_of_differences_and_none_where_there_is_none() -> None:
    profiles = drawn(30)
    ours, theirs = Profiles.of(profiles), Profiles.of(profiles[:10])
    found = distances(ours, theirs)
    weights = np.random.default_rng(0).uniform(0.01, 30.0, len(found))
    metric = Metric(weights, theirs)
    assert metric.apart(metric.place(ours), metric.place(theirs)) == pytest.approx(
        np.tensordot(weights, found, 1), abs=1e-9
    )
    for i, one in enumerate(profiles):
        for j, other in enumerate(profiles[:10]):
            plain = [*np.square(one.sizes - other.sizes).sum(axis=1)]
            for here, there in zip(one.rest.values(), other.rest.values(), strict=True):
                numbers = not isinstance(here, str) and not isinstance(there, str)
                plain.append((here - there) ** 2 if numbers else float(here != there))  # type: ignore[operator]
            assert found[:, i, j] == pytest.approx(plain, abs=1e-9)
            assert (found[:, i, j][np.array(plain) < 1e-12] == 0).all(), "rounding is no distance"


def test_an_operator_that_acts_in_some_points_only_is_compared_too() -> None:
    """Where a point does not grow, no operator acts: nothing, beside a number, would be the same as 0."""
    sizes = np.zeros((6, 2))
    some = Profiles.of([Profile(sizes, {"width": rest}) for rest in ("", 0.0, "preserve", 2.0)])
    apart = [[0, 1, 1, 1], [1, 0, 1, 4], [1, 1, 0, 1], [1, 4, 1, 0]]
    assert distances(some, some)[-1].tolist() == apart
    metric = Metric(np.ones(7), some)
    assert metric.apart(metric.place(some), metric.place(some)) == pytest.approx(np.array(apart), abs=1e-12)


def branch(number: int, one: Leaf, **trial: Any) -> Branch:
    made = optuna.create_trial(**trial)
    made.number = number
    return Branch(made, one, (20.0, 21.0, 22.0, 23.0))


def ended(count: int, left: int = 0) -> list[Branch]:
    """Branches of random points: so many with a final loss, and so many with one at the first rung only."""
    rng = np.random.default_rng(0)
    profiles, made = drawn(count + left), []
    for number, one in enumerate(profiles):
        at = Leaf(number, number, {}, one, (number,) * len(RUNGS), (True,) * len(RUNGS), (number,) * 5)
        loss = float(one.sizes.sum() / 100 + rng.normal(0, 0.01))
        reports = {20: loss + 1.0, **({80: loss + 0.1} if number < count else {})}
        if number < count:
            made.append(branch(number, at, value=loss, intermediate_values=reports))
        else:
            given: dict[str, Any] = {"state": TrialState.PRUNED, "user_attrs": {"status": "pruned"}}
            made.append(branch(number, at, intermediate_values=reports, **given))
    return made


def test_of_many_branches_that_were_left_the_most_promising_are_considered() -> None:
    branches, tree = ended(4, OFFERED + 50), Tree(made_table().study, lambda trial: None)
    for one in branches:
        tree._book.write(one)
    learned = tree._learn(tuple(range(len(branches))))
    left = tree._believe(learned, None, ()).left
    assert len(left) == OFFERED
    dropped = np.setdiff1d(np.arange(4, len(branches)), left)
    assert learned.finals[left].max() <= learned.finals[dropped].min()
    others = tree._believe(learned, None, {int(left[0])}).left
    assert set(others) - set(left) == {dropped[learned.finals[dropped].argmin()]}
    assert set(left) - set(others) == {left[0]}, "its workers died too often"


@pytest.mark.parametrize("seed", range(20))
def test_what_is_worth_the_most_is_found_without_asking_for_every_price(seed: int) -> None:
    rng = np.random.default_rng(seed)
    promise, floors = rng.normal(0, 2, 200), rng.choice([0.0, 0.2, 0.4, 0.8], 200)
    promise[rng.integers(200, size=20)] = -inf
    prices, asked = floors + rng.random(200) * (1 - floors), []

    def price(place: int) -> float:
        asked.append(place)
        return float(prices[place])

    scores = promise - np.log(np.maximum(0.001, prices))
    assert worth(promise, floors, price, 0.001) == scores.argmax()
    assert 0 < len(asked) < 60
    assert worth(np.full(3, -inf), np.zeros(3), price, 0.001) is None


def test_the_book_shows_branches_in_the_order_in_which_it_is_asked_for_them() -> None:
    branches, book = ended(5, 2), Book()
    for one in branches[:4]:
        book.write(one)
    assert book.of((0, 2)).ends.tolist() == [branches[0].loss, branches[2].loss]
    for one in branches[4:]:
        book.write(one)
    found, plain = book.of((6, 1, 4)), Branches.of([branches[place] for place in (6, 1, 4)])
    for name in ("numbers", "ends", "left", "losses", "nodes", "keys"):
        assert np.array_equal(getattr(found, name), getattr(plain, name), equal_nan=True)
    assert np.array_equal(found.profiles().sizes, plain.profiles().sizes)
    assert book.of((6, 1, 4)) is found
    assert book.written.keys() == set(range(7))


def test_many_branches_are_learned_from_by_the_best_and_the_latest() -> None:
    branches = ended(OBSERVED + 60)
    learned = Learned(Branches.of(branches), np.ones(9))
    ranked = sorted(branches, key=lambda one: one.loss or 0.0)
    best, rest = ranked[: OBSERVED // 2], ranked[OBSERVED // 2 :]
    latest = sorted(rest, key=lambda one: one.trial.number)[-OBSERVED // 2 :]
    doubt = 1 - learned.process.believe(Profiles.of([one.leaf.profile for one in branches])).explained
    known = {one.trial.number for one in [*best, *latest]}
    assert len(known) == OBSERVED
    assert all(doubt[number] < 2 * NUGGET for number in known)


def test_a_branch_that_diverged_is_as_bad_as_the_worst_and_one_without_a_loss_unknown() -> None:
    branches = ended(6)
    one = branches[0].leaf
    diverged = branch(7, one, state=TrialState.PRUNED, user_attrs={"status": "diverged"})
    finals, variances = Learned(Branches.of(branches)).expected(
        Branches.of([diverged, branch(8, one, state=TrialState.RUNNING)])
    )
    assert finals[0] == max(other.loss or 0.0 for other in branches)
    assert np.isnan(finals[1])
    assert not variances.any()


def test_weights_are_fitted_anew_when_an_eighth_more_has_ended() -> None:
    assert [fitted(count) for count in range(1, 10)] == list(range(1, 10))
    grid = sorted({fitted(count) for count in range(1, 3000)})
    assert all(a < b <= a + max(1, a // FITTED_ANEW) for a, b in pairwise(grid))
    assert all(fitted(count) <= count for count in range(1, 3000))
    assert len(grid) < 70, "not with each that ends"


def test_what_is_being_trained_counts_as_if_it_had_been_there_from_the_beginning() -> None:
    profiles, rng = Profiles.of(drawn(40)), np.random.default_rng(0)
    part = [
        Profiles(profiles.sizes[s], profiles.numbers[s], profiles.marks[s])
        for s in (slice(0, 20), slice(20, 26), slice(26, 40), slice(0, 24), slice(0, 26))
    ]
    seen, more, asked, with_known, with_all = part
    weights, losses, noise = rng.uniform(0.1, 3, 9), rng.normal(size=24), rng.uniform(0, 0.3, 24)
    process = Process(weights, seen, losses[:20], noise[:20])
    mean, explained = process.updated([process.believe(asked)], more, losses[20:], noise[20:])
    told = Process(weights, with_known, losses, noise).believe(asked)
    assert mean == pytest.approx(told.mean), "two have no loss yet, and change no mean"
    believed = Process(weights, with_known, losses, noise).believe(
        Profiles(more.sizes[4:], more.numbers[4:], more.marks[4:])
    )
    every = Process(weights, with_all, np.append(losses, believed.mean), np.append(noise, [0.0, 0.0]))
    assert explained == pytest.approx(every.believe(asked).explained)
    assert mean == pytest.approx(every.believe(asked).mean)
    assert (explained > told.explained).all()
    halves = [process.believe(asked.at(places)) for places in (np.arange(5), np.arange(5, 14))]
    parts = process.updated(halves, more, losses[20:], noise[20:])
    assert parts[0] == pytest.approx(mean)
    assert parts[1] == pytest.approx(explained)


def test_a_new_point_knows_of_the_branch_that_it_parts_from() -> None:
    """Of three points one shares its way to the second rung, one to the first, one shares nothing."""
    branches = ended(8, 1)
    learned, left = Learned(Branches.of(branches)), branches[-1]
    other = replace(left.leaf, nodes=(100, 101, 102, 103))
    live = branch(50, other, state=TrialState.RUNNING, intermediate_values={20: 3.0, 40: 2.0})
    first = (other.nodes[0], -1, -1, -1)
    leaves = [replace(other, nodes=one) for one in ((100, 101, -1, -1), first, (-1,) * 4)]
    leaves.append(replace(leaves[0], told=(True, False, True, True)))
    mean, deviation = np.full(4, 5.0), np.full(4, 1.0)
    new = Leaves.of(leaves)
    ways = Ways.of(new.nodes, learned.ended).also(Ways.of(new.nodes, Branches.of([live])))
    learned.look_up(ways, new.told, mean, deviation)
    assert (mean[2], deviation[2]) == (5.0, 1.0)
    assert mean[1] == mean[3] != 5.0, "what was not recovered tells nothing"
    assert deviation[1] < 1.0
    for rung, place, loss in ((0, 1, 3.0), (1, 0, 2.0)):
        outlook = learned._outlooks[rung]
        assert outlook is not None
        final, variance = outlook.final(np.array([loss]), np.array([left.sizes[rung]]))
        both = (5.0 + final[0] / variance[0]) / (1 + 1 / variance[0])
        assert mean[place] == pytest.approx(both)


def test_a_way_was_passed_as_far_as_somebody_was_trained_who_begins_like_it() -> None:
    bound = space(SIDES)
    start = {"start.hidden": 0.5, "at.hidden": 0.4, "start.layers": 0.5, "at.layers": 0.8}
    here = {**start, "learning_rate.peak": 0.01, "operator": "preserve"}
    assert stops(bound.times) == [0.2, 0.4, 0.6, 0.8]
    for until, expected in ((0.0, 0.0), (0.2, 0.2), (0.5, 0.4), (1.0, 0.8)):
        passed = Passed(stops(bound.times))
        passed.add(leaf_at(bound, here).way, until)
        for changes, shared in (
            ({}, 1.0),
            ({"at.layers": 0.6}, 0.6),  # it parts right after the stop where the other grows
            ({"operator": "gradmax"}, 0.4),
            ({"learning_rate.peak": 0.02}, 0.0),
            ({"start.layers": 1}, 0.0),
        ):
            ways = Leaves.of([leaf_at(bound, {**here, **changes})]).ways
            assert passed.until(ways).tolist() == [min(expected, shared)], (until, changes)


def test_a_branch_was_trained_until_its_rung_if_it_was_left_and_maybe_beyond_if_not() -> None:
    at = ended(1)[0].leaf
    left: dict[str, Any] = {"state": TrialState.PRUNED, "user_attrs": {"status": "pruned"}}
    for trial, trained in (
        ({"intermediate_values": {20: 3.0}, **left}, 0.2),
        ({"intermediate_values": {20: 3.0, 40: 2.0}, **left}, 0.4),
        ({"state": TrialState.PRUNED, "user_attrs": {"status": "diverged"}}, 1.0),
        ({"value": 2.0}, 1.0),
        ({"state": TrialState.RUNNING}, 0.2),
        ({"state": TrialState.RUNNING, "intermediate_values": {20: 3.0, 40: 2.0}}, 0.6),
        ({"state": TrialState.RUNNING, "intermediate_values": dict.fromkeys(RUNGS, 2.0)}, 1.0),
    ):
        assert branch(0, at, **trial).trained == trained, trial


def test_the_process_finds_which_dimension_matters_and_doubts_what_is_far() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((40, 3)) * 2
    losses, noise = np.sin(3 * x[:, 0]), np.zeros(30)

    def at(places: Any) -> Profiles:
        return Profiles(places[:, :, None], np.zeros((len(places), 0)), np.zeros((len(places), 0), np.int64))

    seen = at(x[:30])
    weights = weigh(distances(seen, seen), losses[:30], noise)
    assert weights[0] > 10 * max(weights[1:])
    process = Process(weights, seen, losses[:30], noise)
    near, far = process.believe(at(x[30:])), process.believe(at(x[30:] + 100))
    assert np.abs(near.mean - losses[30:]).max() < 0.3
    assert np.abs(far.mean).max() < 0.01
    assert deviation(far.explained).min() > 0.99 > deviation(near.explained).max()
    surer = Process(weights, seen, losses[:30], noise + 1e6).believe(at(x[30:]))
    assert np.abs(surer.mean).max() < 0.01, "what is mostly noise tells nothing"


def test_an_outlook_takes_the_lead_of_small_models_for_what_it_is() -> None:
    """Small ones have a lead of 0.2 at the rung that is gone at the end."""
    sizes = np.array([20.0, 20.0, 21.0, 21.0, 20.0, 21.0])
    ends = np.array([2.1, 2.3, 2.1, 2.3, 2.2, 2.2])
    losses = ends + 0.5 + 0.2 * (sizes - 20.0)
    final, variance = Outlook(losses, sizes, ends).final(
        np.array([2.75, 2.85, 2.75]), np.array([20.0, 21.0, 23.0])
    )
    assert final[1] < final[0] - 0.05, "its loss is higher by less than the lead"
    assert variance[2] > variance[0], "no run had that size"
    few, _ = Outlook(losses[:2], sizes[:2], ends[:2]).final(np.array([2.7]), np.array([20.0]))
    assert few[0] == pytest.approx(2.2, abs=0.05)


def test_expected_improvement_is_right_near_and_far() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.normal(1.3, 0.5, 400_000)
    found = log_improvement(np.array([1.3, 2.0, 3.0]), np.array([0.5, 0.1, 0.05]), 1.0)
    assert np.exp(found[0]) == pytest.approx(np.maximum(0, 1.0 - drawn).mean(), rel=0.02)
    assert inf > found[1] > found[2] > -inf
    near, beyond = log_improvement(np.array([1.499, 1.501]), np.array([0.1, 0.1]), 1.0)
    assert near == pytest.approx(beyond, abs=0.15), "the two formulas meet"


def search(seed: int = 0, **options: Any) -> Replayed:
    sampler = Sampler.model_validate({"kind": "tree", **options.pop("sampler", {})})
    return replay(made_table(), seed, sampler=sampler, pruner=Pruner(kind="none"), **options)


def test_on_a_table_it_is_nearer_to_the_best_than_random_search_for_as_much_compute() -> None:
    table = made_table()
    budget, best = table.study.budget, min(table.losses([0]))
    regrets = {"tree": 0.0, "random": 0.0}
    for seed in range(4):
        found = search(seed, total_flops=8.0 * budget)
        assert all(loss is not None for loss in found.losses[:3]), "the first are trained to their end"
        assert None in found.losses, "branches were left"
        assert sum(found.executed) < 0.9 * sum(found.charged)
        regrets["tree"] += found.best_within(8 * budget) - best
        plain = Sampler(kind="random"), Pruner(kind="none")
        other = replay(table, seed, sampler=plain[0], pruner=plain[1], total_flops=8.0 * budget)
        regrets["random"] += other.best_within(8 * budget) - best
    assert regrets["tree"] < 0.5 * regrets["random"]


class _Store(Simulated):
    """A store that has what others trained, or loses what was stored."""

    def __init__(self, others: set[str], *, loses: bool = False) -> None:
        super().__init__(share=True)
        self.others, self.loses = others, loses

    def holds(self, key: str) -> bool:
        return key in self.others or (super().holds(key) and not (self.loses and int(key, 16) % 2))


def played(store: _Store) -> tuple[Replayed, Tree]:
    """A search of the made table beside a store, and its tree."""
    table = made_table()
    kinds = Sampler(kind="tree", startup=3), Pruner(kind="none")
    ledger = in_memory(table, 0, sampler=kinds[0], pruner=kinds[1], total_flops=8.0 * table.study.budget)
    found = _search(table, ledger, store)
    tree = ledger._agenda._tree
    assert tree is not None
    return found, tree


@pytest.mark.parametrize("loses", [False, True])
def test_what_it_does_not_ask_the_price_of_would_change_nothing(
    loses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where stored states are lost: what branches have passed tells what costs at least so much."""
    found, tree = played(_Store(set(), loses=loses))
    assert tree._alone
    floors = Tree._floors

    def nothing_known(self: Tree, believed: Any, promise: Any, live: Any, own: Any) -> Any:
        least, known = floors(self, believed, promise, live, own)
        return np.where(known, least, 0.0), known

    monkeypatch.setattr(Tree, "_floors", nothing_known)
    assert played(_Store(set(), loses=loses))[0] == found


def test_it_notices_that_others_have_trained_more_and_asks_for_all_prices() -> None:
    states = {place.key for row in made_table().rows for place in row.places if place.key is not None}
    _, tree = played(_Store(states))
    assert not tree._alone


def test_without_trunks_a_branch_that_was_left_has_its_own_state() -> None:
    study = replace(made_table().study, config=made_table().study.config.model_copy(update={"trunks": None}))
    tree = Tree(study, lambda trial: None)
    for one in ended(4, 6):
        tree._book.write(one)
    believed = tree._believe(tree._learn(tuple(range(10))), None, ())
    floors, known = tree._floors(believed, np.zeros(6), (), None)
    assert known.all()
    assert floors.tolist() == pytest.approx([0.8 * study.budget] * 6)


def test_it_is_determined_by_its_seed() -> None:
    first = search(total_flops=4.0 * made_table().study.budget)
    assert search(total_flops=4.0 * made_table().study.budget) == first
    assert search(1, total_flops=4.0 * made_table().study.budget).losses != first.losses


@pytest.mark.parametrize("trials", [1, 3, 12])
def test_so_many_trials_are_so_many_branches_trained_to_their_end(trials: int) -> None:
    found, budget = search(trials=trials), made_table().study.budget
    ended = sum(loss is not None for loss in found.losses)
    assert ended == trials
    assert (found.trials > trials) == (trials == 12), "those that were left do not count"
    assert sum(found.executed) < trials * budget


def test_however_many_branches_are_left_no_more_is_executed_than_by_whole_trials(
    tmp_path: Path, place: Path
) -> None:
    ledger, _ = begin(tmp_path, trials=4)
    for _ in range(4):
        claim = ledger.claim(("search",))
        assert claim is not None
        claim.trial.set_user_attr("status", "pruned")
        claim.trial.set_user_attr("executed", ledger.study.budget)
        ledger.tell(claim, None)
    assert ledger.ended(("search",))


def test_a_point_that_killed_its_workers_is_not_offered_again(tmp_path: Path, place: Path) -> None:
    few = {**SPACE, "events": 1, "times": {"low": 0.4, "high": 0.8, "step": 0.4}, "known": {}}
    ledger, _ = begin(tmp_path, space=few, trials=None, total_flops=1e12)
    killed = [ledger.claim(("search",)) for _ in range(1)]
    for _ in range(RETRIES):
        grow_stale(ledger)
        killed.append(ledger.claim(("search",)))
    points = {ledger.study.space.at(claim.trial.params).key for claim in killed if claim is not None}
    assert len(points) == 1, "it is tried again with the same parameters"
    grow_stale(ledger)
    for loss in (2.0, 3.0):
        claim = ledger.claim(("search",))
        assert claim is not None
        assert ledger.study.space.at(claim.trial.params).key not in points
        ledger.tell(claim, [loss])
    assert ledger.ended(("search",)), "the space has three points"


def test_a_large_space_whose_only_point_killed_its_workers_ends(tmp_path: Path, place: Path) -> None:
    """Its parameters have many values, all of which mean training from scratch."""
    one = {**SPACE, "start": [1], "events": 6, "known": {}}
    ledger, _ = begin(tmp_path, space=one, trials=3)
    assert ledger.study.space.size > LISTED
    assert not ledger.ended(("search",))
    for _ in range(RETRIES + 1):
        assert ledger.offers(("search",))
        assert ledger.claim(("search",)) is not None
        grow_stale(ledger)
    assert ledger.claim(("search",)) is None
    assert not ledger.offers(("search",))
    assert ledger.ended(("search",))


def test_a_space_of_one_point_is_trained_once(tmp_path: Path, place: Path) -> None:
    alone = {"kind": "fixed", "schedules": {"from scratch": {"start": FINAL}}}
    ledger, _ = begin(tmp_path, space=alone, trials=5, budget={"flops": 1.2e8})
    assert not ledger.study.space.settings
    claim = ledger.claim(("search",))
    assert claim is not None
    assert ledger.claim(("search",)) is None
    ledger.study.space.sample(claim.trial)
    ledger.tell(claim, [2.0])
    assert ledger.ended(("search",))


def leaf_at(bound: Space, parameters: dict[str, Any]) -> Leaf:
    return leaf(bound.at(parameters), parameters, bound.times, Pruner())


def test_points_that_share_their_training_until_a_rung_share_its_node() -> None:
    bound = space(SIDES)
    grown = {"start.hidden": 0.5, "at.hidden": 0.4, "start.layers": 0.5, "at.layers": 0.8}
    here = {**grown, "learning_rate.peak": 0.01, "operator": "preserve"}
    first = leaf_at(bound, here).nodes
    assert len(RUNGS) == len(first) == 4
    for changes, shared in (
        ({}, 4),
        ({"at.layers": 0.6}, 3),
        ({"operator": "gradmax"}, 2),
        ({"learning_rate.peak": 0.02}, 0),
    ):
        nodes = leaf_at(bound, {**here, **changes}).nodes
        assert [ours == theirs for ours, theirs in zip(first, nodes, strict=True)] == [
            place < shared for place in range(4)
        ], changes


def test_an_operator_that_does_not_act_makes_no_difference() -> None:
    start = {"hidden": 32, "layers": 4, "mlp": 256, "heads": 4, "key": 16, "value": 16}
    events = [{"at": 0.2, "grow": [{"expand": "hidden", "to": 64}], "operator": "preserve"}]
    named = {"kind": "fixed", "schedules": {"own": {"start": start, "events": events}}}
    bound = space({**named, "training": {"operator": ["preserve", "gradmax"]}})
    ours, theirs = (leaf_at(bound, {"schedule": "own", "operator": one}) for one in ("preserve", "gradmax"))
    assert (ours.key, ours.nodes) == (theirs.key, theirs.nodes)
    assert not distances(Profiles.of([ours.profile]), Profiles.of([theirs.profile])).any()


def test_a_space_that_has_no_further_points_is_searched_and_left(tmp_path: Path, place: Path) -> None:
    few = {**SPACE, "events": 1, "times": {"low": 0.4, "high": 0.8, "step": 0.4}, "known": {}}
    ledger, _ = begin(tmp_path, space=few, trials=None, total_flops=1e12)
    losses = iter([2.0, 3.0, 2.5])
    while (claim := ledger.claim(("search",))) is not None:
        ledger.study.space.sample(claim.trial)
        ledger.tell(claim, [next(losses)])
    assert ledger.ended(("search",))
    assert another(ledger, tmp_path).ended(("search",)), "one that claimed nothing knows it too"
    assert next(losses, None) is None, "there are three: from scratch, and two times"


def test_of_a_large_space_it_considers_a_sample_that_branches_from_the_best(
    tmp_path: Path, place: Path
) -> None:
    large = {**SIDES, "times": {"low": 0.1, "high": 0.8, "step": 0.05}, "steps": 2}
    ledger, _ = begin(tmp_path, space=large, trials=None, total_flops=1e12, budget={"flops": 1e9})
    assert ledger.study.space.size > LISTED
    points, late = [], []
    for _ in range(16):
        claim = ledger.claim(("search",))
        assert claim is not None
        points.append(ledger.study.space.sample(claim.trial))
        late.append(sum(event.at for event in points[-1].schedule.events))
        claim.trial.report(3.0 + late[-1], 20)
        ledger.tell(claim, [2.0 + late[-1]])
    assert len({point.key for point in points}) == 16
    assert fmean(late[8:]) < 0.5 * fmean(late[:8]), "fewer and earlier events are better here"


def test_a_sample_is_the_same_until_a_trial_or_a_parent_comes_and_keeps_its_parts() -> None:
    large = space({**SIDES, "times": {"low": 0.1, "high": 0.8, "step": 0.05}, "steps": 2})
    made: list[Any] = []

    def at(parameters: Any) -> Leaf:
        made.append(parameters)
        return leaf_at(large, parameters)

    def parent(number: int) -> Branch:
        drawn = {name: setting.values[0] for name, setting in large.settings.items()}
        return branch(number, leaf_at(large, drawn), value=2.0)

    sample = Sample("some", large, at)
    first = sample.leaves([parent(3)], 10)
    count = len(made)
    assert len(first.keys) == count == PARTS * FRESH + PARTS // TURNS
    assert sample.leaves([parent(3)], 10) is first
    sample.leaves([parent(3)], 12)  # somebody else drew for 11
    assert len(made) == count + FRESH, "it is not the parent's turn"
    sample.leaves([parent(3), parent(4)], 12)
    varied = made[count + FRESH :]
    assert len(varied) == PARTS // TURNS + 1, "12 is its turn, and so were half of those before 11"
    changes = [
        sum(one[name] != setting.values[0] for name, setting in large.settings.items()) for one in varied
    ]
    assert 0 < fmean(changes) < len(large.settings) / 2, "they begin like their parent"
    again = Sample("some", large, at).leaves([parent(3)], 10)
    assert np.array_equal(again.keys, first.keys)


def test_a_branch_that_was_taken_away_from_its_worker_goes_on_until_that_is_noticed(
    tmp_path: Path, place: Path
) -> None:
    ledger, _ = begin(tmp_path, trials=30, baselines={**ONE, "learning_rates": [0.006]})
    claim = ledger.claim(("search",))
    assert claim is not None
    claim.trial.report(3.0, 20)
    grow_stale(ledger)
    other = another(ledger, tmp_path)
    assert other.claim(("search",)) is not None
    assert ledger.goes_on(ledger.storage.get_trial(claim.trial._trial_id))


def test_its_settings(tmp_path: Path, place: Path) -> None:
    config = load_study(write_study(tmp_path, sampler={"kind": "tree"}))
    assert (config.sampler.startup, config.pruner.kind) == (3, "none")
    given = load_study(write_study(tmp_path, sampler={"kind": "tree", "startup": 5}))
    assert given.sampler.startup == 5
    for changes, told in (
        ({"pruner": {"kind": "median"}}, "sampler.kind tree gives branches up itself"),
        ({"objectives": ["loss", "parameters"]}, "sampler.kind tree wants one objective"),
    ):
        with pytest.raises(ValueError, match=told):
            load_study(write_study(tmp_path, sampler={"kind": "tree"}, **changes))
    (tmp_path / "own_space.py").write_text("def sample(trial, final): ...\n")
    with pytest.raises(ValueError, match=r"sampler\.kind: tree wants a space whose parameters"):
        begin_study(write_study(tmp_path, sampler={"kind": "tree"}, space={"python": "own_space:sample"}))


LIVE: dict[str, Any] = {
    "space": {**SPACE, "times": {"low": 0.2, "high": 0.8, "step": 0.2}, "known": {}},
    "sampler": {"kind": "tree", "startup": 2},
    "trials": 6,
    "baselines": ONE,
    "trunks": {"gigabytes": 1, "share": 1e9},
}


def begin(folder: Path, **changes: Any) -> tuple[Ledger, Setting]:
    _, where, ledger = begin_study(write_study(folder, **{**LIVE, **changes}))
    return ledger, replace(setting_of(ledger, folder), trunks=open_trunks(ledger.study, where))


def test_live_branches_are_ordinary_trials_and_resume(tmp_path: Path, place: Path) -> None:
    ledger, setting = begin(tmp_path, trials=4)
    prices = open_prices(ledger.study, setting.folder, setting.corpus, setting.device, setting.trunks)
    count = 0
    while (claim := ledger.claim(prices=prices)) is not None:
        pursue(claim, ledger, setting, nothing)
        count += 1
        ledger = another(ledger, tmp_path)  # as a process that was started again
    assert ledger.ended()
    trials = ledger.trials("search")
    keys = {ledger.study.space.at(trial.params).key for trial in trials}
    assert len(trials) == len(keys), "no point twice"
    records = [record for record in read_trials(setting.folder) if record.kind == "search"]
    assert {record.number for record in records} == {trial.number for trial in trials}
    finished = [record for record in records if record.status == "finished"]
    assert len(finished) == 4 < len(records), "branches that were left do not count"
    for record in records:
        if record.status == "pruned":
            (trial,) = (trial for trial in trials if trial.number == record.number)
            assert trial.last_step in RUNGS
    summary = summarise(ledger)
    assert summary.executed == sum(record.executed for record in read_trials(setting.folder))
    assert (summary.ended, summary.planned, summary.pruned) == (4, 4, 0)
    assert summary.branches == len(records) - len(finished)


def test_workers_look_elsewhere_and_a_dead_one_is_made_up_for(tmp_path: Path, place: Path) -> None:
    ledger, _ = begin(tmp_path, trials=30, baselines={**ONE, "learning_rates": [0.006]})
    claims = [ledger.claim(("search",)) for _ in range(4)]
    points = [ledger.study.space.at(claim.trial.params).key for claim in claims if claim is not None]
    assert len(set(points)) == 4, "nothing has ended, and nobody idles"
    for claim, loss in zip(claims, (2.0, 3.0, 2.5), strict=False):
        assert claim is not None
        claim.trial.report(loss, 20)
        ledger.tell(claim, [loss])
    more = [ledger.claim(("search",)) for _ in range(3)]
    points += [ledger.study.space.at(claim.trial.params).key for claim in more if claim is not None]
    assert len(set(points)) == 7
    grow_stale(ledger)
    again = another(ledger, tmp_path).claim(("search",))
    assert again is not None
    assert ledger.study.space.at(again.trial.params).key in points
    assert {trial.state for trial in ledger.trials("search")} == {
        TrialState.COMPLETE,
        TrialState.WAITING,
        TrialState.RUNNING,
    }
