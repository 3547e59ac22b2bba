"""What TPE is told of trials: the same as Optuna's own, but of very many only some."""

from __future__ import annotations

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.samplers._tpe.sampler import _split_trials, default_gamma
from optuna.trial import FrozenTrial, TrialState

from nasgrow.search.config import Sampler
from nasgrow.search.samplers import MODELLED, draw, make_sampler, modelled

SPACE: dict[str, BaseDistribution] = {
    "rate": FloatDistribution(1e-4, 1e-1, log=True),
    "at": FloatDistribution(0.1, 0.7, step=0.1),
    "order": CategoricalDistribution(["top", "bottom", None]),
}


def test_numbers_that_are_kept_are_those_that_optuna_works_out() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    tpe, plain = make_sampler(Sampler(startup=2), 1), TPESampler(seed=1, n_startup_trials=2)
    assert isinstance(tpe, TPESampler)
    for number in range(20):
        trial = study.ask(SPACE) if number % 5 else study.ask()
        if number != 19:
            study.tell(trial, number % 7)
        trials = study.get_trials(deepcopy=False)
        for of in (SPACE, {"at": SPACE["at"]}):
            ours, theirs = (sampler._get_internal_repr(trials, of, study) for sampler in (tpe, plain))
            assert ours.keys() == theirs.keys()
            assert all(np.array_equal(ours[name], theirs[name]) for name in of)
    drawn = [draw(study, make_sampler(Sampler(startup=2), seed), SPACE) for seed in (3, 3, 4)]
    fresh = TPESampler(seed=3, n_startup_trials=2)
    assert drawn[0] == drawn[1] == fresh._sample(study, optuna.create_trial(state=TrialState.RUNNING), SPACE)
    assert drawn[2] != drawn[0]


def filled(count: int, complete: int, name: str = "many") -> optuna.Study:
    """A study of so many trials that ended, of which so many were not given up, and one that runs."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(study_name=name, sampler=RandomSampler(seed=0))
    rng = np.random.default_rng(0)
    whole = set(rng.permutation(count)[:complete].tolist())
    for number, loss in enumerate(rng.random(count)):
        told = {"value": loss} if number in whole else {"state": TrialState.PRUNED}
        params = {"rate": 10 ** rng.uniform(-4, -1), "at": 0.1, "order": "top"}
        reports = {int(rng.integers(20, 80)): loss}
        study.add_trial(
            optuna.create_trial(params=params, distributions=SPACE, intermediate_values=reports, **told)
        )
    study.ask(SPACE)
    return study


def numbers(trials: list[FrozenTrial]) -> set[int]:
    return {trial.number for trial in trials}


def test_a_model_of_very_many_trials_has_the_good_ones_and_a_bounded_sample_of_the_others() -> None:
    for complete in (MODELLED + 300, 10):
        study = filled(MODELLED + 300, complete)
        every = study.get_trials(deepcopy=False)
        found = modelled(study, every)
        assert len(found) == MODELLED + 1
        assert found[-1].state == TrialState.RUNNING, "of what is being trained it must know"
        assert found == [trial for trial in every if trial in found], "in their order"
        good = default_gamma(len(every))
        below, others = (_split_trials(study, some, good)[0] for some in (found, every))
        assert below == others
        # The others are from all of them, not the first, the last or the best.
        left = numbers(every) - numbers(found)
        assert 0.3 < sum(number < len(every) / 2 for number in left) / len(left) < 0.7


def test_the_sample_is_everybodys_and_changes_by_one_trial_at_a_time() -> None:
    study, same, other = (filled(MODELLED + 50, 400, name) for name in ("many", "many too", "another"))
    same.study_name = study.study_name
    before = numbers(modelled(study, study.get_trials(deepcopy=False)))
    assert before == numbers(modelled(same, same.get_trials(deepcopy=False)))
    assert before != numbers(modelled(other, other.get_trials(deepcopy=False)))
    drawn = [draw(one, make_sampler(Sampler(), 5), SPACE) for one in (study, same)]
    assert drawn[0] == drawn[1]
    study.tell(MODELLED + 50, 0.5)
    assert len(before - numbers(modelled(study, study.get_trials(deepcopy=False)))) <= 1


def test_up_to_the_bound_draws_are_optunas() -> None:
    for more, same in ((0, True), (1500, False)):
        study = filled(MODELLED + more, MODELLED + more)
        trial = optuna.create_trial(state=TrialState.RUNNING)
        drawn = [draw(study, make_sampler(Sampler(), seed), SPACE) for seed in range(24)]
        plain = [TPESampler(seed=seed)._sample(study, trial, SPACE) for seed in range(24)]
        assert (drawn == plain) is same
