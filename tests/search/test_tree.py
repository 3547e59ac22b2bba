"""Tree search: branches that are trained from rung to rung, where they promise the most for what is left."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from nasgrow.search.config import Pruner, Sampler, load_study
from nasgrow.search.grid import points
from nasgrow.search.ledger import Ledger
from nasgrow.search.objective import pursue
from nasgrow.search.outcome import Setting
from nasgrow.search.replay import Replayed, replay
from nasgrow.search.storage import RETRIES
from nasgrow.search.summary import summarise
from nasgrow.search.tree.outlook import Outlook
from nasgrow.search.tree.profile import distances, profile
from nasgrow.search.tree.search import LISTED, OFFERED, RUNGS, Branch, _offered, leaf, log_improvement
from nasgrow.search.tree.value import predict, weigh
from nasgrow.search.trials import read_trials
from nasgrow.search.trunks import open_prices, open_trunks
from tests.search.asking import FILES, RandomTrial, space
from tests.search.made import made_table
from tests.search.studies import FINAL, SPACE, begin_study, write_study
from tests.search.test_ledger import another, grow_stale
from tests.search.test_objective import nothing, setting_of
from tests.search.test_taking_up import ONE

SIDES = {
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
    ours, theirs = (profile(bound.at(one), one, bound.times) for one in (here, there))
    names = ["hidden", "layers", "mlp", "heads", "key", "value", "rate", "operator"]
    found = dict(zip(names, distances([ours], [theirs])[:, 0, 0], strict=True))
    return {name: value for name, value in found.items() if value}


def test_points_are_as_far_apart_as_their_shapes_for_as_long_as_they_are() -> None:
    assert apart({}) == {}
    assert apart({"at.hidden": 0.4}) == {"hidden": pytest.approx(0.2)}
    assert apart({"at.hidden": 0.8}) == {"hidden": pytest.approx(0.6)}
    assert apart({"at.layers": 0.8}) == {}, "they do not grow"
    assert apart({"start.layers": 0.5, "at.layers": 0.4}) == {"layers": pytest.approx(0.4)}
    assert apart({"operator": "gradmax"}) == {"operator": 1.0}
    assert apart({"learning_rate.peak": 0.02}) == {"rate": pytest.approx(1.0)}


def test_distances_are_those_of_differences_and_none_where_there_is_none() -> None:
    bound = space(str(FILES[0].with_name("per-dimension.yaml")))
    drawn = [RandomTrial(seed) for seed in range(30)]
    made = [(bound.sample(trial), trial.asked) for trial in drawn]
    profiles = [profile(point, {**asked}, bound.times) for point, asked in made]
    found = distances(profiles, profiles[:10])
    for i, ours in enumerate(profiles):
        for j, theirs in enumerate(profiles[:10]):
            plain = np.square(ours.sizes - theirs.sizes).sum(axis=1)
            assert found[: len(plain), i, j] == pytest.approx(plain, abs=1e-9)
            assert (found[: len(plain), i, j][plain < 1e-12] == 0).all(), "rounding is no distance"


def test_of_many_branches_that_were_left_the_most_promising_are_considered() -> None:
    study = made_table().study
    one = leaf(study.space, next(iter(points(study.space).values())))
    left, expected = [], {}
    for number in range(OFFERED + 50):
        trial = optuna.create_trial(state=TrialState.PRUNED)
        trial.number = number
        left.append(Branch(trial, one, (20.0,) * len(RUNGS)))
        expected[number] = 3.0 - number / 1000, 0.1
    assert _offered(left[:OFFERED], expected) == left[:OFFERED]
    assert _offered(left, expected) == left[50:], "the lowest losses came last"
    left[0].trial.state = TrialState.RUNNING
    assert _offered(left, expected) == [left[0], *left[51:]], "at a rung it is asked about"


def test_the_process_finds_which_dimension_matters_and_doubts_what_is_far() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((40, 3)) * 2
    losses = np.sin(3 * x[:, 0])
    away = np.square(x[:, None] - x[None]).transpose(2, 0, 1)
    seen = slice(0, 30)
    among, noise = away[:, seen, seen], np.zeros(30)
    weights = weigh(among, losses[seen], noise)
    assert weights[0] > 10 * max(weights[1:])
    mean, deviation = predict(weights, among, losses[seen], noise, away[:, 30:, seen])
    assert np.abs(mean - losses[30:]).max() < 0.3
    far, doubt = predict(weights, among, losses[seen], noise, away[:, 30:, seen] + 100)
    assert np.abs(far).max() < 0.01
    assert doubt.min() > 0.99 > deviation.max()
    surer, _ = predict(weights, among, losses[seen], noise + 1e6, away[:, 30:, seen])
    assert np.abs(surer).max() < 0.01, "what is mostly noise tells nothing"


def test_an_outlook_takes_the_lead_of_small_models_for_what_it_is() -> None:
    """Small ones have a lead of 0.2 at the rung that is gone at the end."""
    sizes = [20.0, 20.0, 21.0, 21.0, 20.0, 21.0]
    ends = [2.1, 2.3, 2.1, 2.3, 2.2, 2.2]
    losses = [end + 0.5 + 0.2 * (size - 20.0) for end, size in zip(ends, sizes, strict=True)]
    outlook = Outlook(losses, sizes, ends)
    small, large = outlook.final(2.75, 20.0), outlook.final(2.85, 21.0)
    assert large[0] < small[0] - 0.05, "its loss is higher by less than the lead"
    assert outlook.final(2.75, 23.0)[1] > small[1], "no run had that size"
    assert Outlook(losses[:2], sizes[:2], ends[:2]).final(2.7, 20.0)[0] == pytest.approx(2.2, abs=0.05)


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


def test_points_that_share_their_training_until_a_rung_share_its_node() -> None:
    bound = space(SIDES)
    grown = {"start.hidden": 0.5, "at.hidden": 0.4, "start.layers": 0.5, "at.layers": 0.8}
    here = {**grown, "learning_rate.peak": 0.01, "operator": "preserve"}
    first = leaf(bound, here).nodes
    assert len(RUNGS) == len(first) == 4
    for changes, shared in (
        ({}, 4),
        ({"at.layers": 0.6}, 3),
        ({"operator": "gradmax"}, 2),
        ({"learning_rate.peak": 0.02}, 0),
    ):
        nodes = leaf(bound, {**here, **changes}).nodes
        assert [ours == theirs for ours, theirs in zip(first, nodes, strict=True)] == [
            place < shared for place in range(4)
        ], changes


def test_an_operator_that_does_not_act_makes_no_difference() -> None:
    start = {"hidden": 32, "layers": 4, "mlp": 256, "heads": 4, "key": 16, "value": 16}
    events = [{"at": 0.2, "grow": [{"expand": "hidden", "to": 64}], "operator": "preserve"}]
    named = {"kind": "fixed", "schedules": {"own": {"start": start, "events": events}}}
    bound = space({**named, "training": {"operator": ["preserve", "gradmax"]}})
    ours, theirs = (leaf(bound, {"schedule": "own", "operator": one}) for one in ("preserve", "gradmax"))
    assert (ours.key, ours.nodes) == (theirs.key, theirs.nodes)
    assert not distances([ours.profile], [theirs.profile]).any()


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
    points = []
    for number in range(8):
        claim = ledger.claim(("search",))
        assert claim is not None
        points.append(ledger.study.space.sample(claim.trial))
        early = sum(event.at for event in points[-1].schedule.events)
        claim.trial.report(3.0 + early, 20)
        ledger.tell(claim, [2.0 + early + 0.01 * number])
    assert len({point.key for point in points}) == 8
    first, later = ([len(p.schedule.events) for p in some] for some in (points[:2], points[4:]))
    assert sum(later) / len(later) < sum(first) / len(first), "fewer and earlier events are better here"


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
