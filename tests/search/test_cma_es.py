"""CMA-ES whose state is told anew: the state that Optuna would have kept, and no pickle."""

from __future__ import annotations

import math
import pickle
from typing import NoReturn

import numpy as np
import optuna
import pytest
from optuna.samplers import CmaEsSampler

from nasgrow.search.cma_es import ToldAnew
from nasgrow.search.storage import quiet

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

STARTUP = 3


def loss(trial: optuna.Trial) -> float:
    share = trial.suggest_float("share", 0, 1, step=0.05)
    rate = trial.suggest_float("rate", 1e-3, 0.1, log=True)
    return (share - 0.3) ** 2 + abs(math.log10(rate) + 2)


def test_its_state_is_the_one_that_would_have_been_kept() -> None:
    with quiet():
        kept_by = CmaEsSampler(seed=0, n_startup_trials=STARTUP, with_margin=True)
        study = optuna.create_study(sampler=kept_by)
        study.optimize(loss, n_trials=60)
        ours = ToldAnew(seed=1, startup=STARTUP)
    trials = study.trials
    last = max(one.number for one in trials if any("optimizer" in name for name in one.system_attrs))
    kept = kept_by._restore_optimizer(trials)
    ours._space = kept_by.infer_relative_search_space(study, trials[-1])
    told = ours._restore_optimizer(trials[:last])
    assert kept is not None
    assert told.generation == kept.generation > 3
    for name in ("_mean", "_sigma", "_C", "_p_sigma", "_pc"):
        np.testing.assert_allclose(getattr(told._cma, name), getattr(kept._cma, name), rtol=1e-12)


def test_nothing_is_kept_or_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a pickle was loaded")

    monkeypatch.setattr(pickle, "loads", refuse)
    with quiet():
        study = optuna.create_study()
        for number in range(40):
            study.sampler = ToldAnew(seed=number, startup=STARTUP)
            study.optimize(loss, n_trials=1)
    generations = [one.system_attrs.get("cmawm:generation") for one in study.trials]
    assert generations[:STARTUP] == [None] * STARTUP
    assert max(one for one in generations if one is not None) > 3
    assert not [name for one in study.trials for name in one.system_attrs if "optimizer" in name]


def test_parameters_may_come_and_go() -> None:
    def changing(trial: optuna.Trial) -> float:
        more = trial.suggest_float("more", 0, 1) if trial.number < 30 else 0.0
        return loss(trial) + more

    with quiet():
        study = optuna.create_study()
        for number in range(50):
            study.sampler = ToldAnew(seed=number, startup=STARTUP)
            study.optimize(changing, n_trials=1)
    assert {len(one.system_attrs.get("x_for_tell", ())) for one in study.trials} == {0, 2, 3}
