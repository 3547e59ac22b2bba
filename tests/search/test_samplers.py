"""What TPE is told of trials does not depend on what was worked out before."""

from __future__ import annotations

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import RandomSampler, TPESampler

from nasgrow.search.config import Sampler
from nasgrow.search.samplers import draw, make_sampler

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
    assert (
        drawn[0]
        == drawn[1]
        == fresh._sample(study, optuna.create_trial(state=optuna.trial.TrialState.RUNNING), SPACE)
    )
    assert drawn[2] != drawn[0]
