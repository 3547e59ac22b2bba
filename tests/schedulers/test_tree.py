"""Tree search: features, the model of losses, and what the scheduler makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest

from nasgrow.experiments.replay import Replayed, replay
from nasgrow.schedulers.base import Decision, Resume, Start
from nasgrow.schedulers.make import make_scheduler
from nasgrow.schedulers.tree import TreeScheduler
from nasgrow.schedulers.tree.features import RUNGS, Encoder, TrialTable
from nasgrow.schedulers.tree.model import (
    NUGGET,
    OBSERVED,
    CurveRegression,
    GaussianProcess,
    LossModel,
    _best_and_latest,
    fit_lengthscales,
    log_ei,
)
from nasgrow.schedulers.tree.search import FRESH, MAX_CONSIDERED, PARTS, TURNS
from nasgrow.study.config import Pruner, Sampler
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import Status, TrialRecord
from tests.schedulers.playing import Play, finished, record, small_study
from tests.study.made import made_table

SIDES: dict[str, Any] = {
    "kind": "per-dimension",
    "dims": {"hidden": {"start": [1, 0.5]}, "layers": {"start": [1, 0.5]}},
    "times": {"low": 0.2, "high": 0.8, "step": 0.2},
    "training": {
        "operator": ["preserve", "gradmax"],
        "learning_rate.rewarm": [0, 0.05, 0.1],
    },
}
GROWN = {"start.hidden": 0.5, "at.hidden": 0.4, "start.layers": 0.5, "at.layers": 0.8}
HERE = {**GROWN, "learning_rate.peak": 0.01, "operator": "preserve", "learning_rate.rewarm": 0}
GROUPS = ["hidden", "layers", "mlp", "heads", "key", "value", "operator", "rewarm", "peak"]
LARGE = {**SIDES, "times": {"low": 0.1, "high": 0.8, "step": 0.05}, "steps": 2}


def tree_study(**changes: Any) -> ResolvedStudy:
    """A study with two learning rates, unless it has a space of its own."""
    own = not changes.get("space", SIDES).get("training")
    rates = {"learning_rate.peak": ["x1"] if own else [0.01, 0.02]}
    tree = {"space": SIDES, "sampler": {"kind": "tree"}, "trials": 30, "tune": rates}
    return small_study(**{**tree, **changes})


class TestFeatures:
    def apart(self, changes: dict[str, Any], here: dict[str, Any] = HERE) -> dict[str, float]:
        """The squared distances of a point from one that differs, by group."""
        encoder = Encoder(tree_study())
        rows = encoder.rows([here, {**here, **changes}])
        squared = np.square(rows["X"][0] - rows["X"][1])
        found = {name: squared[encoder.groups == group].sum() for group, name in enumerate(GROUPS)}
        return {name: float(value) for name, value in found.items() if value > 1e-12}

    def test_points_are_apart_as_far_and_as_long_as_their_shapes(self) -> None:
        assert self.apart({}) == {}
        assert self.apart({"at.hidden": 0.6}) == {"hidden": pytest.approx(0.2)}
        assert self.apart({"at.hidden": 0.8}) == {"hidden": pytest.approx(0.4)}
        assert self.apart({"start.layers": 1}) == {"layers": pytest.approx(0.8)}
        whole = {**HERE, "start.layers": 1}
        assert self.apart({"at.layers": 0.2}, whole) == {}, "there is nothing to grow"

    def test_numbers_are_compared_by_logarithm_or_share_and_categories_are_one_apart(self) -> None:
        assert self.apart({"learning_rate.peak": 0.02}) == {"peak": pytest.approx(1.0)}
        assert self.apart({"operator": "gradmax"}) == {"operator": pytest.approx(1.0)}
        assert self.apart({"learning_rate.rewarm": 0.05}) == {"rewarm": pytest.approx(0.25)}
        assert self.apart({"learning_rate.rewarm": 0.1}) == {"rewarm": pytest.approx(1.0)}

    def test_an_operator_that_never_acts_makes_no_difference(self) -> None:
        start = {"hidden": 8, "layers": 2, "mlp": 32, "heads": 2, "key": 4, "value": 4}
        events = [{"at": 0.2, "grow": [{"expand": "hidden", "to": 16}], "operator": "preserve"}]
        named = {"kind": "fixed", "schedules": {"own": {"start": start, "events": events}}}
        study = tree_study(space={**named, "training": {"operator": ["preserve", "gradmax"]}}, tune={})
        points = [
            {"schedule": "own", "learning_rate.peak": 0.006, "operator": one}
            for one in ("preserve", "gradmax")
        ]
        ours, theirs = Encoder(study).rows(points)
        assert ours == theirs

    def test_points_share_their_prefix_until_they_part(self) -> None:
        encoder = Encoder(tree_study())
        for changes, shared in (
            ({}, 4),
            ({"at.layers": 0.6}, 3),  # an evaluation at an event comes before it
            ({"operator": "gradmax"}, 2),
            ({"learning_rate.rewarm": 0.1}, 2),
            ({"learning_rate.peak": 0.02}, 0),
            ({"start.layers": 1}, 0),
        ):
            ours, theirs = encoder.rows([HERE, {**HERE, **changes}])
            assert (ours["prefix"] == theirs["prefix"]).tolist() == [at < shared for at in range(4)], changes
            assert (ours["key"] == theirs["key"]) == (not changes)

    def test_rows_say_whether_losses_have_recovered_and_what_a_step_costs(self) -> None:
        study = tree_study(pruner={"kind": "none", "recovery": 0.3})
        (row,) = Encoder(study).rows([HERE])
        assert row["recovered"].tolist() == [True, True, False, True], "it grows at 0.4 and at 0.8"
        assert row["log_flops"][0] == row["log_flops"][1] < row["log_flops"][2] == row["log_flops"][3]

    def test_the_table_of_trials_follows_the_records(self) -> None:
        study = tree_study()
        trials = {3: record(study, 3, HERE)}
        table = TrialTable(Encoder(study), trials)
        table.update()
        assert table.numbers == [3]
        assert np.isnan(table.rung_losses).all()
        assert np.isnan(table.loss).all()
        trials[3].evaluations += [(0.0, 6.0), (0.2, 3.0), (0.45, 2.0)]
        trials[5] = finished(study, 5, {**HERE, "at.hidden": 0.6}, 1.5)
        table.update()
        assert table.rung_losses[0].tolist()[:2] == [3.0, 2.0], "the first evaluation from the rung on"
        assert table.trained.tolist() == [0.4, 0.0]
        assert table.status.tolist() == ["running", "finished"]
        assert table.loss[1] == 1.5
        trials[3].status = "paused"
        table.update()
        assert table.status[0] == "paused"
        # One point parts from the trial after 0.4, another at once.
        way = table.losses_on_the_way(
            Encoder(study).rows([{**HERE, "at.hidden": 0.6}, {**HERE, "start.layers": 1}])
        )
        assert way[0, :2].tolist() == [3.0, 2.0]
        assert np.isnan(way[0, 2:]).all()
        assert np.isnan(way[1]).all()


class TestModel:
    def test_log_ei_is_exact_and_rises_everywhere(self) -> None:
        z = np.concatenate([-np.geomspace(1e6, 1e-3, 400), np.geomspace(1e-3, 1e3, 200), [-1.0, -100.0, 0.0]])
        z = np.unique(
            np.concatenate([z, -1 + np.linspace(-1e-3, 1e-3, 41), -100 + np.linspace(-0.1, 0.1, 41)])
        )
        found = log_ei(-z, np.ones(len(z)), 0.0)
        assert (np.diff(found) > 0).all()
        with mpmath.workdps(60):
            for at, value in zip(z[::7].tolist(), found[::7].tolist(), strict=True):
                exact = mpmath.mpf(at)
                # phi(z) + z Phi(z), where Phi is told by its tail so that nothing cancels in the exponent
                scaled = mpmath.erfc(-exact / mpmath.sqrt(2)) * mpmath.exp(exact**2 / 2) / 2
                if at > -1e3:  # beyond, the digits do not suffice
                    h = 1 / mpmath.sqrt(2 * mpmath.pi) + exact * scaled
                    wanted = float(mpmath.log(h) - exact**2 / 2)
                    assert value == pytest.approx(wanted, rel=1e-12, abs=1e-12), at
        scaled = log_ei(np.array([1.3]), np.array([0.5]), 1.0) - log_ei(np.array([0.6]), np.array([1.0]), 0.0)
        assert scaled == pytest.approx(math.log(0.5))

    def test_the_process_finds_which_features_matter_and_doubts_what_is_far(self) -> None:
        rng = np.random.default_rng(0)
        X = rng.random((40, 4)) * 2
        Y, groups = np.sin(3 * X[:, 0]), np.array([0, 1, 1, 2])
        noise = np.zeros(30)
        scales = fit_lengthscales(X[:30], Y[:30], noise, groups)
        assert 3 * scales[0] < min(scales[1:])
        process = GaussianProcess(X[:30], Y[:30], noise, scales[groups])
        (near, sure), (far, unsure) = process.posterior(X[30:]), process.posterior(X[30:] + 100)
        assert np.abs(near - Y[30:]).max() < 0.3
        assert np.abs(far).max() < 0.01
        assert unsure.min() > 0.99 > sure.max()
        mean, _ = GaussianProcess(X[:30], Y[:30], noise + 1e6, scales[groups]).posterior(X[30:])
        assert np.abs(mean).max() < 0.01, "what is mostly noise says nothing"

    def test_the_posterior_is_that_of_the_textbook(self) -> None:
        rng = np.random.default_rng(1)
        X, Y, noise, new = (
            rng.normal(size=(9, 3)),
            rng.normal(size=9),
            rng.uniform(0, 0.3, 9),
            rng.normal(size=(4, 3)),
        )
        scales = np.array([0.5, 1.0, 2.0])

        def kernel(a: Any, b: Any) -> Any:
            return np.exp(-0.5 * np.square((a[:, None] - b[None]) / scales).sum(axis=2))

        inverse = np.linalg.inv(kernel(X, X) + np.diag(noise + NUGGET))
        mean, std = GaussianProcess(X, Y, noise, scales).posterior(new)
        assert mean == pytest.approx(kernel(new, X) @ inverse @ Y)
        variance = 1 - np.einsum("ij,jk,ik->i", kernel(new, X), inverse, kernel(new, X))
        assert std == pytest.approx(np.sqrt(variance))

    def test_pending_points_change_doubt_and_no_mean(self) -> None:
        rng = np.random.default_rng(0)
        X, pending, new = rng.normal(size=(20, 3)), rng.normal(size=(2, 3)), rng.normal(size=(8, 3))
        before = GaussianProcess(X, rng.normal(size=20), np.zeros(20), np.ones(3))
        after = before.with_pending(pending)
        assert after.posterior(new)[0] == pytest.approx(before.posterior(new)[0])
        assert (after.posterior(new)[1] < before.posterior(new)[1]).all()
        assert after.posterior(pending)[1].max() < 2 * math.sqrt(NUGGET)

    def test_the_regression_takes_the_lead_of_small_models_for_what_it_is(self) -> None:
        """Small ones have a lead of 0.2 at the rung that is gone at the end."""
        log_flops = np.array([20.0, 20.0, 21.0, 21.0, 20.0, 21.0])
        finals = np.array([2.1, 2.3, 2.1, 2.3, 2.2, 2.2])
        losses = finals + 0.5 + 0.2 * (log_flops - 20.0)
        regression = CurveRegression(losses, log_flops, finals)
        mean, variance = regression.predict(np.array([2.75, 2.85, 2.75]), np.array([20.0, 21.0, 23.0]))
        assert mean[1] < mean[0] - 0.05, "its loss is higher by less than the lead"
        assert variance[2] > variance[0], "no trial had that size"
        few, _ = CurveRegression(losses[:2], log_flops[:2], finals[:2]).predict(
            np.array([2.7]), np.array([20.0])
        )
        assert few[0] == pytest.approx(2.2, abs=0.05)

    def table(self, count: int = 8) -> TrialTable:
        """Finished trials, a diverged one, a paused one with a loss at the first rung, and a running one."""
        study = tree_study()
        rng, trials = np.random.default_rng(1), dict[int, TrialRecord]()
        for number in range(count + 3):
            parameters = {name: setting.draw(1, rng)[0] for name, setting in study.space.settings.items()}
            loss = 2.0 + float(rng.random())
            trials[number] = record(study, number, parameters)
            if number < count:
                trials[number] = finished(study, number, parameters, loss)
                trials[number].evaluations = [(rung, loss + 1 - rung) for rung in RUNGS]
        trials[count].status = "diverged"
        trials[count + 1].status, trials[count + 1].evaluations = "paused", [(0.2, 3.0)]
        table = TrialTable(Encoder(study), trials)
        table.update()
        return table

    def test_a_diverged_trial_is_as_bad_as_the_worst_and_one_without_losses_unknown(self) -> None:
        table = self.table()
        model = LossModel(table, np.arange(table.rows["X"].shape[1]))
        assert model.best == table.loss[:8].min()
        assert model.expected[8] == table.loss[:8].max()
        assert model.best - 0.3 < model.expected[9] < table.loss[:8].max()
        assert np.isnan(model.expected[10])
        mean, std = model.posterior(table.rows)
        assert np.corrcoef(mean[:8], table.loss[:8])[0, 1] > 0.95
        assert std[9] > 2 * std[0], "what the regression says is doubted"
        model.condition_on_pending(np.isnan(model.expected))
        assert model.posterior(table.rows)[1][10] < std[10]

    def test_a_new_point_learns_from_the_trial_that_shares_its_prefix(self) -> None:
        table = self.table()
        model = LossModel(table, np.arange(table.rows["X"].shape[1]))
        rows = table.rows[[9, 9, 9]]  # the paused trial's
        rows["prefix"][1] = -1
        rows["recovered"][2] = False
        mean, std = model.posterior(rows)
        told, surer = model.posterior_of_new(rows)
        assert (told[1:] == mean[1:]).all(), "one shares nothing, of the other the loss tells nothing"
        assert surer[1:] == pytest.approx(std[1:])
        assert surer[0] < std[0]
        known = (table.rows["recovered"][:, 0] & ~np.isnan(table.loss)).nonzero()[0]
        regression = CurveRegression(
            table.rung_losses[known, 0], table.rows["log_flops"][known, 0], table.loss[known]
        )
        final, variance = regression.predict(np.array([3.0]), rows["log_flops"][:1, 0])
        weights = np.array([std[0] ** -2, 1 / variance[0]])
        assert told[0] == pytest.approx(weights @ [mean[0], final[0]] / weights.sum())

    def test_of_many_trials_the_best_and_the_latest_are_learned_from(self) -> None:
        losses = np.random.default_rng(0).normal(size=OBSERVED + 60)
        losses[::7] = np.nan
        found = _best_and_latest(losses)
        known = np.flatnonzero(~np.isnan(losses))
        best = known[np.argsort(losses[known])][: OBSERVED // 2]
        latest = [place for place in known if place not in best][-OBSERVED // 2 :]
        assert sorted(found) == sorted([*best, *latest])


def search(seed: int = 0, kind: str = "tree", **options: Any) -> Replayed:
    sampler = Sampler.model_validate({"kind": kind})
    pruner = Pruner(kind="none")
    return replay(made_table(), seed, sampler=sampler, pruner=pruner, **options)


class TestReplays:
    """Searches of a table of 125 points whose losses follow a formula."""

    def test_it_finds_better_points_than_random_search_for_as_much_compute(self) -> None:
        budget, best = made_table().study.budget, min(made_table().losses([0]))
        regrets = {"tree": 0.0, "random": 0.0}
        for seed in range(3):
            for kind in regrets:
                found = search(seed, kind, total_flops=8.0 * budget)
                regrets[kind] += found.best_within(8 * budget) - best
                if kind == "tree":
                    assert {trial.status for trial in found.trials[:3]} == {"finished"}, (
                        "they are trained whole"
                    )
                    assert {trial.status for trial in found.trials} == {"finished", "pruned"}
                    assert found.executed < 0.9 * found.charged
        assert regrets["tree"] < 0.5 * regrets["random"]

    def test_searches_depend_on_their_seeds_alone(self) -> None:
        total = 4.0 * made_table().study.budget
        assert search(total_flops=total).ended == search(total_flops=total).ended
        assert search(1, total_flops=total).ended != search(total_flops=total).ended

    @pytest.mark.parametrize("trials", [1, 3, 12])
    def test_so_many_trials_finish_and_paused_ones_do_not_count(self, trials: int) -> None:
        found = search(trials=trials)
        assert sum(trial.loss is not None for trial in found.trials) == trials
        assert (len(found.trials) > trials) == (trials == 12)
        assert found.executed < trials * made_table().study.budget

    def test_several_slots_train_different_points(self) -> None:
        found = search(trials=12, slots=4)
        space = made_table().study.space
        assert len({space.at(trial.parameters).key for trial in found.trials}) == len(found.trials)


class TestDecisions:
    def rung(self, final: float, at: float = 0.8, **changes: Any) -> tuple[TreeScheduler, TrialRecord]:
        """A search with finished trials of another learning rate, and a running one at a rung.

        All curves are parallel; ``final`` is the loss that the running trial is heading for.
        """
        study = tree_study(**changes)
        points = [
            (one, later, start) for one in (0.2, 0.4, 0.6) for later in (0.6, 0.8) for start in (0.5, 1)
        ]
        trials = {
            number: finished(
                study,
                number,
                {
                    **HERE,
                    "at.hidden": one,
                    "at.layers": later,
                    "start.layers": start,
                    "learning_rate.peak": 0.02,
                },
                2.0 + 0.1 * number,
            )
            for number, (one, later, start) in enumerate(points)
        }
        for trial in trials.values():
            assert trial.loss is not None
            trial.evaluations = [(rung, trial.loss + 1 - rung) for rung in RUNGS]
        own = record(study, len(trials), HERE)
        own.evaluations = [(rung, final + 1 - rung) for rung in RUNGS if rung <= at]
        trials[own.number] = own
        return TreeScheduler(study, trials), own

    def test_a_trial_is_paused_at_a_rung_if_something_else_promises_more(self) -> None:
        tree, trial = self.rung(3.0, at=0.4)
        assert tree.on_evaluation(trial, 0.4, 3.6) is Decision.PAUSE
        assert tree.on_evaluation(trial, 0.35, 3.6) is Decision.CONTINUE, "that is no rung"
        assert tree.on_evaluation(trial, 0.4, math.inf) is Decision.CONTINUE, "it will diverge by itself"

    def test_a_good_trial_goes_on_and_would_be_resumed(self) -> None:
        tree, trial = self.rung(1.8)
        assert tree.on_evaluation(trial, 0.8, 2.0) is Decision.CONTINUE
        trial.status = "paused"
        assert tree.suggest() == Resume(trial.number)

    def test_a_full_study_goes_on_with_what_is_expected_to_become_the_best(self) -> None:
        for final, decision in ((1.5, Decision.CONTINUE), (2.05, Decision.PAUSE)):
            tree, trial = self.rung(final, trials=12)
            assert tree.on_evaluation(trial, 0.8, final + 0.2) is decision

    def test_the_first_trials_are_trained_whole(self) -> None:
        tree, trial = self.rung(3.0, 0.4, sampler={"kind": "tree", "startup": 13})
        assert tree.on_evaluation(trial, 0.4, 3.6) is Decision.CONTINUE

    def test_a_trial_goes_on_that_has_not_recovered_from_an_event(self) -> None:
        tree, trial = self.rung(3.0, 0.4, pruner={"kind": "none", "recovery": 0.3})
        trial.parameters["at.hidden"] = 0.2
        assert tree.on_evaluation(trial, 0.4, 3.6) is Decision.CONTINUE

    def test_a_trial_goes_on_where_another_has_trained_the_same_already(self) -> None:
        tree, trial = self.rung(3.0, at=0.4)
        twin = replace(trial, number=99, status="paused", parameters={**HERE, "at.layers": 0.6})
        twin.evaluations = [*trial.evaluations, (0.6, 3.4)]
        assert isinstance(tree.trials, dict)
        tree.trials[99] = twin
        assert tree.on_evaluation(trial, 0.4, 3.6) is Decision.CONTINUE

    def test_paused_trials_do_not_count_but_what_they_executed_does(self) -> None:
        study = tree_study(trials=4)
        trials: dict[int, TrialRecord] = {}
        tree = TreeScheduler(study, trials)
        for number in range(4):
            assert not tree.is_full()
            trials[number] = record(study, number, HERE, status="paused", executed=study.budget)
        assert tree.is_full()
        trials[3].executed //= 2
        assert not tree.is_full()
        for number in range(4):
            trials[number].status = "running"
        assert tree.is_full()
        assert not tree.is_full(besides=trials[3])
        assert tree.suggest() is None

    def test_a_failed_point_is_not_tried_again_and_a_space_ends(self) -> None:
        few = {**SIDES, "times": {"low": 0.4, "high": 0.8, "step": 0.4}}
        del few["training"]
        play = Play(tree_study(space=few), make_scheduler, workers=1)
        first = play.suggest()
        assert isinstance(first, Start)
        play.act(first)
        play.trials[0].status = "failed"
        play.run()
        space = play.study.space
        keys = [space.at(trial.parameters).key for trial in play.trials.values()]
        assert len(set(keys)) == len(keys) == 9, "each dimension grows at one of two times, or not at all"

    def test_a_space_of_one_point_is_trained_once(self) -> None:
        final = {"hidden": 16, "layers": 2, "mlp": 32, "heads": 2, "key": 4, "value": 4}
        alone = {"kind": "fixed", "schedules": {"from scratch": {"start": final}}}
        play = Play(tree_study(space=alone, trials=5), make_scheduler)
        play.run()
        assert [trial.status for trial in play.trials.values()] == ["finished"]

    def test_only_pruned_points_may_start_again_when_a_study_is_extended(self) -> None:
        tree, trial = self.rung(1.8)
        for status in get_args(Status):
            trial.status, trial.losses = status, [1.8]
            tree._table.update()
            assert (HERE in tree._new_points()[0]) == (status == "pruned")

    def test_a_large_space_is_searched_by_a_sample_around_the_best(self) -> None:
        study = tree_study(space={**LARGE, "training": {}}, trials=None, total_flops=1e15)
        assert study.space.size > MAX_CONSIDERED

        def loss(parameters: Mapping[str, Any]) -> float:
            return float(sum((value - 0.45) ** 2 for value in parameters.values()))

        play = Play(study, make_scheduler, workers=1, loss=lambda trial: loss(trial.parameters))
        play.run(starts=16)
        assert len({study.space.at(trial.parameters).key for trial in play.trials.values()}) == 16
        rng, settings = np.random.default_rng(0), study.space.settings
        drawn = [{name: one.draw(1, rng)[0] for name, one in settings.items()} for _ in range(500)]
        best = min(loss(trial.parameters) for trial in play.trials.values())
        assert best < np.quantile([loss(point) for point in drawn], 0.03), "random search would expect 1/17"

    def test_a_sample_is_the_same_until_another_trial_starts_and_has_mutations_of_trials(self) -> None:
        study = tree_study(space=LARGE)
        parent = {name: setting.values[0] for name, setting in study.space.settings.items()}
        trials = {0: finished(study, 0, parent, 2.0)}
        tree = TreeScheduler(study, trials)
        tree._table.update()
        drawn, _ = tree._draw_sample(1)
        assert len(drawn) == PARTS * FRESH + PARTS // TURNS
        assert tree._draw_sample(1)[0] == drawn
        changed = [sum(one[name] != parent[name] for name in parent) for one in drawn]
        assert sum(0 <= count <= 4 for count in changed) >= PARTS // TURNS
        later, _ = tree._draw_sample(3)
        assert len([one for one in later if one not in drawn]) in range(2 * FRESH, 2 * FRESH + 3)

    def test_a_large_space_of_few_points_ends(self) -> None:
        """Its parameters have many values, all of which mean training from scratch."""
        one = {
            "kind": "compound",
            "start": [1],
            "events": 6,
            "times": {"low": 0.1, "high": 0.7, "step": 0.15},
        }
        play = Play(tree_study(space=one, trials=5), make_scheduler, workers=1)
        assert play.study.space.size > MAX_CONSIDERED
        play.run()
        assert len(play.trials) == 1
