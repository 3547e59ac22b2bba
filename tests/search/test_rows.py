"""Reading trials as rows: what is read is what Optuna reads, whatever happened to them."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import RandomSampler
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import TrialState

from nasgrow.search import database, rows
from nasgrow.search.cache import Cache
from nasgrow.search.database import Database
from nasgrow.search.storage import GRACE, open_storage
from nasgrow.search.taking_up import OnceStudy, again, taken_up

pytestmark = pytest.mark.filterwarnings("ignore:Heartbeat of storage")  # trials are begun by Optuna here

SPACE: dict[str, BaseDistribution] = {
    "rate": FloatDistribution(1e-4, 1e-1, log=True),
    "at": FloatDistribution(0.1, 0.7, step=0.1),
    "heads": IntDistribution(1, 8),
    "order": CategoricalDistribution(["top", "bottom", None, 0.5]),
}


def made(folder: Path) -> Database:
    return open_storage(f"sqlite:///{folder / 'study.db'}")


def happen(study: optuna.Study, chance: random.Random) -> None:
    """Begin a trial, or let something happen to one."""
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    if not running or chance.random() < 0.3:
        study.ask(SPACE) if chance.random() < 0.8 else study.enqueue_trial({"at": 0.3}, {"known": "x"})
        return
    one = chance.choice(running)
    trial = optuna.Trial(study, one._trial_id)
    what = chance.randrange(6)
    if what == 0 and len(study.directions) == 1:
        trial.report(chance.choice([2.0, math.inf, -math.inf]), chance.randrange(100))
    elif what == 1:
        trial.set_user_attr(chance.choice("abc"), chance.choice([None, 1.5, "é", [1, {"x": 2}]]))
    elif what == 2:
        study._storage.set_trial_system_attr(one._trial_id, chance.choice("abc"), chance.random())
    elif what == 3:
        state = chance.choice([TrialState.PRUNED, TrialState.FAIL])
        study.tell(trial, state=state)
    else:
        study.tell(trial, [chance.choice([1.0, math.inf, -math.inf]) for _ in study.directions])


@pytest.mark.parametrize("objectives", [1, 2])
def test_what_is_read_is_what_optuna_reads(
    objectives: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "TOGETHER", 7)
    storage, chance = made(tmp_path), random.Random(objectives)
    studies = [
        optuna.create_study(
            storage=storage, sampler=RandomSampler(seed=0), directions=["minimize"] * objectives
        )
        for _ in range(2)
    ]
    caches = [Cache(storage) for _ in studies]
    for _ in range(120):
        happen(chance.choice(studies), chance)
        for study, cache in zip(studies, caches, strict=True):
            if chance.random() < 0.1:
                only = chance.choice([None, (TrialState.RUNNING,)])
                known = cache.get_all_trials(study._study_id, deepcopy=False, states=only)
                assert known == storage.get_all_trials(study._study_id, states=only)
    for study in studies:
        of = study._study_id
        study.enqueue_trial({"at": 0.3}, {"known": "y"})
        every = RDBStorage._get_trials(storage, of, None, set(), -1)
        assert {trial.state for trial in every} == set(TrialState)
        assert storage._get_trials(of, None, set(), -1) == every
        given = (TrialState.WAITING, TrialState.FAIL)
        assert storage.get_all_trials(of, states=given) == [one for one in every if one.state in given]
        ids = {trial._trial_id for trial in every}
        for beyond in (min(ids), sorted(ids)[len(ids) // 2], max(ids), max(ids) + 9):
            for some in (set[int](), set(chance.sample(sorted(ids), 9))):
                assert storage._get_trials(of, None, some, beyond) == RDBStorage._get_trials(
                    storage, of, None, some, beyond
                )
        for trial in every:
            assert storage.get_trial(trial._trial_id) == trial
    read = storage._get_trials(of, None, set(), -1)
    shared = [trial.distributions["at"] for trial in read if "at" in trial.distributions]
    assert len(set(map(id, shared))) == 1, "what all trials have is kept once"
    storage.engine.dispose()


@pytest.mark.parametrize("seed", range(3))
def test_what_several_processes_do_is_seen_by_each_in_order_and_parted(tmp_path: Path, seed: int) -> None:
    """Each knows of a trial that it began itself before it has read those that others began before."""
    chance, name = random.Random(seed), "some"
    optuna.create_study(storage=made(tmp_path), study_name=name)
    studies = [OnceStudy(name, made(tmp_path)) for _ in range(3)]
    every = studies[0].get_trials()
    before = studies[0].parted()
    for _ in range(120):
        study = chance.choice(studies)
        left = [one for one in every if one.state == TrialState.PRUNED]
        if left and chance.random() < 0.2:
            study.add_trial(again(chance.choice(left)))
        elif chance.random() < 0.05:
            for one in study.get_trials(states=(TrialState.RUNNING, TrialState.WAITING)):
                study._storage.set_trial_state_values(one._trial_id, TrialState.FAIL)
        else:
            happen(study, chance)
        if chance.random() < 0.5:
            continue
        reader = chance.choice(studies)
        parted, read = (
            reader.parted(),
            RDBStorage._get_trials(made(tmp_path), study._study_id, None, set(), -1),
        )
        gone = {number for one in read if one.state != TrialState.FAIL for number in taken_up(one)}
        every = [one for one in read if one.number not in gone]
        over = (TrialState.COMPLETE, TrialState.PRUNED)
        numbers = [one.number for one in parted.ended]
        assert numbers == [one.number for one in every if one.state in over]
        assert [*parted.failed] == [one for one in every if one.state == TrialState.FAIL]
        assert [one.number for one in parted.live] == [
            one.number for one in every if not one.state.is_finished()
        ]
        assert [one.number for one in reader.get_trials(deepcopy=False)] == [one.number for one in every]
        if reader is studies[0]:
            same = numbers == [one.number for one in before.ended]
            assert (parted.ended is before.ended) == same
            before = parted


def test_who_begins_a_trial_after_others_that_it_has_not_read_sees_them_in_order(tmp_path: Path) -> None:
    optuna.create_study(storage=made(tmp_path), study_name="some")
    ours, theirs = (OnceStudy("some", made(tmp_path)) for _ in range(2))
    first = ours.ask()
    assert [one.number for one in ours.get_trials()] == [0]
    others = [theirs.ask() for _ in range(2)]
    ours._storage.create_new_trial(ours._study_id)
    assert [one.number for one in ours.get_trials()] == [0, 1, 2, 3]
    for trial in (others[0], first):
        theirs.tell(trial.number, 1.0)
    assert [one.state.is_finished() for one in ours.get_trials()] == [True, True, False, False]


def test_of_two_who_end_a_trial_at_once_one_is_told_that_it_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite keeps nobody from changing what another has read."""
    storage, other = made(tmp_path), made(tmp_path)
    study = optuna.create_study(storage=storage)
    trial_id, asked = study.ask()._trial_id, rows.state_of

    def overtaken(session: Any, of: int) -> TrialState:
        state = asked(session, of)
        monkeypatch.setattr(database, "state_of", asked)
        other.set_trial_state_values(trial_id, TrialState.COMPLETE, [1.0])
        return state

    monkeypatch.setattr(database, "state_of", overtaken)
    with pytest.raises(UpdateFinishedTrialError):
        storage.set_trial_state_values(trial_id, TrialState.FAIL)
    found = made(tmp_path).get_trial(trial_id)
    assert (found.state, found.values) == (TrialState.COMPLETE, [1.0])


def test_what_is_not_there_is_refused_as_optuna_does(tmp_path: Path) -> None:
    storage = made(tmp_path)
    empty = optuna.create_study(storage=storage)
    assert storage.get_all_trials(empty._study_id) == []
    for read in (lambda: storage.get_all_trials(99), lambda: storage.get_trial(99)):
        with pytest.raises(KeyError):
            read()
    storage.engine.dispose()


def test_who_gave_no_sign_of_life_is_who_optuna_says(tmp_path: Path) -> None:
    storage = made(tmp_path)
    study = optuna.create_study(storage=storage)
    trials = [study.ask() for _ in range(5)]
    for trial in trials[:4]:  # one never gave any
        storage.record_heartbeat(trial._trial_id)
    study.tell(trials[0], 1.0)
    beats = models.TrialHeartbeatModel
    with storage.engine.begin() as connection:
        for trial, seconds in zip(trials, (GRACE + 60, GRACE + 60, GRACE - 15), strict=False):
            ago = sqlalchemy.func.datetime("now", f"-{seconds} seconds")
            old = sqlalchemy.update(beats).where(beats.trial_id == trial._trial_id)
            connection.execute(old.values(heartbeat=ago))
    found = storage._get_stale_trial_ids(study._study_id)
    assert found == RDBStorage._get_stale_trial_ids(storage, study._study_id) == [trials[1]._trial_id]
    storage.engine.dispose()
