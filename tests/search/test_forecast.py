"""Forecasts: what is said of a study before it runs is what it comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nasgrow.search.forecast import Assumed, Forecast, Work, forecast
from nasgrow.search.ledger import KINDS, Ledger
from nasgrow.search.objective import pursue
from nasgrow.search.outcome import Setting
from nasgrow.search.passage import Paces, Passage
from nasgrow.search.study import open_study
from nasgrow.search.summary import summarise
from nasgrow.search.trunks import OnDisk
from nasgrow.training.machine import numerics
from nasgrow.training.pace import Pace
from nasgrow.training.run import Run
from nasgrow.training.trunks import Store
from tests.search.studies import SPACE, write_study
from tests.search.test_objective import nothing
from tests.search.test_trunks import CHEAP, PARTING, start

pytestmark = pytest.mark.usefixtures("place")

SURE: dict[str, Any] = {
    "space": {**SPACE, "known": PARTING},
    "sampler": {"kind": "random"},
    "pruner": {"kind": "none"},
    "trials": 4,
    "seeds": [0, 1],
    "baselines": {"shares": [], "learning_rates": [0.006], "extended": False},
}
"""A study of which everything is known beforehand."""


def foretell(ledger: Ledger, setting: Setting, *, begun: bool, paces: Paces | None = None) -> Forecast:
    trunks = setting.trunks
    trained = OnDisk(None if trunks is None else trunks.store, setting.folder)
    assumed = Assumed(
        setting.corpus.fingerprint,
        numerics(setting.device),
        trained,
        None if paces is None else lambda: paces,
    )
    return forecast(ledger.study, ledger if begun else None, assumed)


def train(ledger: Ledger, setting: Setting, most: int | None = None) -> None:
    while most != 0 and (claim := ledger.claim()) is not None:
        pursue(claim, ledger, setting, nothing)
        most = None if most is None else most - 1


def spent(work: Work) -> tuple[int, int, int, int]:
    return work.trials, work.runs, work.charged, work.executed


def test_what_is_known_is_foretold_to_the_last_flop(tmp_path: Path) -> None:
    ledger, setting = start(tmp_path, **SURE)
    (before,) = foretell(ledger, setting, begun=False).courses
    train(ledger, setting, most=4)
    midway = foretell(ledger, setting, begun=True)
    (left,) = midway.courses
    assert {kind: midway.done[kind].trials for kind in KINDS} == {"baseline": 2, "search": 2}
    assert midway.done["search"].seconds
    train(ledger, setting)
    for kind in KINDS:
        told = [trial.user_attrs for trial in ledger.trials(kind)]
        actual = (
            len(told),
            2 * len(told),
            *(sum(one[name] for one in told) for name in ("charged", "executed")),
        )
        assert spent(before.work[kind]) == actual
        assert spent(midway.done[kind] + left.work[kind]) == actual
    assert before.total.executed < 0.9 * before.total.charged
    assert before.total.seconds is None, "nothing was measured"
    assert left.total.seconds is not None
    assert left.total.seconds > 0, "as the first trials took"
    assert setting.trunks is not None
    entries = {entry.key: entry.size for entry in setting.trunks.store.entries()}
    assert entries.keys() == before.states.keys()
    tensors = {key: (setting.trunks.store.path(key) / "state.safetensors").stat().st_size for key in entries}
    assert all(0.8 * tensors[key] < size < tensors[key] for key, size in before.states.items())
    (nothing_left,) = foretell(ledger, setting, begun=True).courses
    assert spent(nothing_left.total) == (0, 0, 0, 0)

    other, setting = start(tmp_path, "other", **SURE)
    (reusing,) = foretell(other, setting, begun=False).courses
    assert reusing.total.executed < 0.6 * before.total.executed, "what the first has stored counts"
    train(other, setting)
    assert reusing.total.executed == summarise(other).executed


def untrained(folder: Path, paces: Paces | None = None, **changes: Any) -> Forecast:
    study, _ = open_study(write_study(folder, **{"trunks": CHEAP, **changes}))
    trained = OnDisk(Store(folder / "no-trunks", 0.0), folder / "none")
    return forecast(study, None, Assumed("", {}, trained, None if paces is None else lambda: paces))


def test_without_trunks_all_is_executed_that_is_charged_but_what_is_sampled_again(tmp_path: Path) -> None:
    (shared,) = untrained(tmp_path, **SURE).courses
    path = write_study(tmp_path, **SURE)
    path.write_text(path.read_text(encoding="utf-8") + "trunks: null\n", encoding="utf-8")
    (alone,) = forecast(open_study(path)[0], None, Assumed("", {}, OnDisk(None, tmp_path), None)).courses
    assert not alone.states
    assert alone.total.charged == shared.total.charged
    assert shared.total.executed < alone.total.executed <= alone.total.charged
    again = alone.total.charged - alone.total.executed
    assert again % 2 == 0, "both seeds of a point are the same as before, or neither is"


def test_what_is_not_known_lies_between_the_least_and_the_most(tmp_path: Path) -> None:
    pruner = {"kind": "median", "after": 0.25, "recovery": 0.1}
    rates = {"shares": [], "learning_rates": [0.001, 0.002, 0.004]}
    told = untrained(tmp_path, trials=10, pruner=pruner, seeds=[0, 1], baselines=rates)
    assert told.draws == 10
    assert len(told.courses) == 20
    assert told.between(lambda course: course.work["search"].trials) == (10, 10)
    # Two sizes at three rates each and the training's own, and up to three more rates of each.
    assert told.between(lambda course: course.work["baseline"].trials) == (8, 14)
    budget = told.study.budget
    for course in told.courses:
        each = course.work["search"].charged / 10 / budget
        if course.whole:
            assert each == pytest.approx(2, rel=0.02), "both seeds to their end"
        else:
            assert 0.25 <= each < 1.95, "what is no baseline's run is given up"
            spent = course.work["search"].executed / 10 / budget
            assert spent <= 0.85, "one seed, until it may be judged: recovered from its last event"
    executed = told.between(lambda course: course.work["search"].executed)
    assert executed is not None
    assert executed[0] < 0.5 * executed[1]
    assert told.between(lambda course: course.total.seconds) is None
    alone = untrained(tmp_path, trials=10, pruner={"kind": "none"}, baselines={"extended": False})
    assert all(course.whole for course in alone.courses)
    assert len(alone.courses) == alone.draws == 10
    tree = untrained(tmp_path, trials=5, sampler={"kind": "tree"}, baselines=rates)
    for course in tree.courses:
        work = course.work["search"]
        assert work.trials == 5
        assert work.charged == pytest.approx(5 * budget, rel=0.05), "branches that end count, no others"
        if course.whole:
            assert work.executed == work.charged, "branches that are left cost what sharing spares"
        else:
            assert work.executed < work.charged


def test_midway_what_was_given_up_may_go_on(tmp_path: Path) -> None:
    known = {f"at {at}": {"start": 0.5, "at.1": at, "at.2": at} for at in (0.1, 0.2, 0.3, 0.4)}
    ledger, setting = start(
        tmp_path,
        space={**SPACE, "known": known},
        sampler={"kind": "tpe"},
        pruner={"kind": "halving", "after": 0.25, "recovery": 0.0},
        trials=4,
        baselines={"shares": [], "start": False, "learning_rates": [0.006], "extended": False},
    )
    train(ledger, setting, most=1 + 4)
    begun = ledger.trials("search")
    assert [trial.state.is_finished() for trial in begun].count(True) == 4
    told = foretell(ledger, setting, begun=True)
    least, most = (
        next(course.work["search"] for course in told.courses if course.whole == whole)
        for whole in (False, True)
    )
    assert spent(least) == (0, 0, 0, 0), "perhaps nobody goes on"
    given_up = [trial for trial in begun if trial.user_attrs["status"] == "pruned"]
    assert given_up
    missing = sum(told.study.budget - trial.user_attrs["charged"] for trial in given_up)
    assert (most.trials, most.runs) == (0, 0), "they are counted among what is done"
    assert most.charged == pytest.approx(missing, rel=0.1), "steps are whole"
    assert 0 < most.executed <= most.charged
    train(ledger, setting)
    assert told.done["search"].executed < summarise(ledger).executed - told.done["baseline"].executed
    executed = sum(trial.user_attrs["executed"] for trial in ledger.trials("search"))
    assert executed <= told.done["search"].executed + most.executed


def test_nothing_is_left_of_a_tree_that_has_begun_every_point(tmp_path: Path) -> None:
    few = {**SPACE, "start": [1], "known": {}}
    fixed = {"shares": [], "start": False, "extended": False, "learning_rates": [0.006]}
    ledger, setting = start(tmp_path, space=few, sampler={"kind": "tree"}, trials=9, baselines=fixed)
    train(ledger, setting)
    assert ledger.ended()
    told = foretell(ledger, setting, begun=True)
    assert told.done["search"].trials == 1
    assert {spent(course.total) for course in told.courses} == {(0, 0, 0, 0)}


def test_limits_of_compute_and_time_end_it_too(tmp_path: Path) -> None:
    none: dict[str, Any] = {"trials": None, "pruner": {"kind": "none"}}
    flops = untrained(tmp_path, total_flops=2e8, **none)
    for course in flops.courses:
        assert 2e8 <= course.work["search"].executed < 2e8 + flops.study.budget
    with pytest.raises(ValueError, match="tiny: hours is its only limit"):
        untrained(tmp_path, hours=0.1, **none)
    slow = Paces({1: Pace(step=3.0, evaluation=0.0, saved=0)})
    hours = untrained(tmp_path, slow, hours=0.1, **none)
    for course in hours.courses:
        assert course.work["search"].seconds is not None
        assert 360 <= course.work["search"].seconds < 900


def test_what_would_take_for_ever_to_play_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^tiny: trials: a plan plays at most 5,000, not 1,000,000,000$"):
        untrained(tmp_path, trials=10**9)
    monkeypatch.setattr("nasgrow.search.forecast.MOST_STEPS", 1e6)
    with pytest.raises(ValueError, match=r"^tiny: budget: 1e\+13 FLOPs a run are too many to be planned"):
        untrained(tmp_path, budget={"flops": 1e13})
    monkeypatch.setattr("nasgrow.search.forecast.MOST_TRIALS", 20)
    with pytest.raises(ValueError, match=r"^tiny: its limits allow more than 20 trials, the most of a plan$"):
        untrained(tmp_path, trials=None, total_flops=1e300)
    assert untrained(tmp_path, trials=20).draws == 10
    monkeypatch.setattr("nasgrow.search.forecast.TRIALS", 60)
    assert untrained(tmp_path, trials=20).draws == 2, "each of two courses of 20 trials, and of baselines"


def test_the_time_of_a_part_of_a_run_is_that_of_its_steps_and_evaluations(tmp_path: Path) -> None:
    study, _ = open_study(write_study(tmp_path))
    point = study.space.at({"start": 0.5, "at.1": 0.3, "at.2": 0.5})
    run = Run.resolve(study.run(point.schedule, point.training, 0), vocab=256, fingerprint="")
    passage = Passage.of(run, study.space.times, {}, study.config.pruner)
    steps = Paces({1: Pace(step=2.0, evaluation=0.0, saved=0)})
    looks = Paces({1: Pace(step=0.0, evaluation=1.0, saved=0)})
    assert passage.seconds(0, passage.charged, steps) == pytest.approx(2.0 * run.stages[-1].end)
    training = run.config.training
    tokens = (20 + 2 * 2) * training.evaluation_tokens + training.final_tokens
    assert passage.seconds(0, passage.charged, looks) == pytest.approx(tokens / training.batch_tokens)
    for paces in (steps, looks):
        half = passage.forks[len(passage.forks) // 2].charged
        parts = passage.seconds(0, half, paces) + passage.seconds(half, passage.charged, paces)
        assert parts == pytest.approx(passage.seconds(0, passage.charged, paces))
    assert passage.seconds(passage.charged, passage.charged, looks) == 0
    measured = Paces({100: Pace(1.0, 0.5, 10), 300: Pace(2.0, 0.5, 30)})
    assert [measured.step(flops) for flops in (50, 100, 200, 300, 900)] == [1.0, 1.0, 1.5, 2.0, 2.0]
    assert measured.saved == 30
