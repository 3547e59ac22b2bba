"""Trials that were given up go on: ranked anew as others come, counted once, to the same bits."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState

from nasgrow.search.asking import Asking
from nasgrow.search.config import Pruner, Sampler
from nasgrow.search.ledger import Claim, Ledger
from nasgrow.search.objective import pursue
from nasgrow.search.outcome import RUNS, Setting
from nasgrow.search.replay import replay
from nasgrow.search.storage import RETRIES
from nasgrow.search.summary import summarise
from nasgrow.search.trials import read_trials
from nasgrow.search.trunks import open_trunks
from nasgrow.training.loop import Stopped
from nasgrow.training.records import METRICS
from tests.search.made import made_table
from tests.search.studies import SPACE, begin_study, write_study
from tests.search.test_ledger import another, grow_stale
from tests.search.test_objective import nothing, setting_of

pytestmark = pytest.mark.usefixtures("place")

HALVING = {"kind": "halving", "after": 0.25, "recovery": 0.0}
KNOWN = {f"at {at}": {"start": 0.5, "at.1": at, "at.2": at} for at in (0.1, 0.2, 0.3, 0.4, 0.5)}
ONE = {"shares": [], "start": False, "learning_rates": [0.006]}


def begin(folder: Path, **changes: Any) -> Ledger:
    options = {"pruner": HALVING, "space": {**SPACE, "known": KNOWN}, "trials": 5, "baselines": ONE}
    return begin_study(write_study(folder, **{**options, **changes}))[2]


def take(ledger: Ledger) -> Claim:
    claim = ledger.claim(("search",))
    assert claim is not None
    return claim


def play(ledger: Ledger, claim: Claim, loss: float) -> str:
    """Report a loss at each twentieth of the budget, as training would."""
    ledger.study.space.sample(claim.trial)
    ask = Asking(claim, ledger, [], first=True)
    status = "finished"
    try:
        for index in range(20):
            ask.judge(index / 20, loss)
    except Stopped:
        status = "pruned"
    claim.trial.set_user_attr("status", status)
    claim.trial.set_user_attr("executed", 10 if status == "pruned" else 40)
    ledger.tell(claim, [loss] if status == "finished" else None)
    return status


def numbers(trials: list[FrozenTrial]) -> list[int]:
    return [trial.number for trial in trials]


def test_a_trial_goes_on_once_it_is_among_the_best_half_of_its_rung(tmp_path: Path) -> None:
    ledger = begin(tmp_path)
    assert [play(ledger, take(ledger), loss) for loss in (1.0, 2.0, 3.0)] == ["finished", "pruned", "pruned"]
    assert play(ledger, take(ledger), 4.0) == "pruned"
    first = ledger.trials("search")[1]
    claim = take(ledger)
    assert claim.trial.number == 5, "of four, two go on"
    assert claim.trial.params == first.params
    assert claim.trial.user_attrs["known"] == first.user_attrs["known"]
    assert ledger.taken_up(claim.trial) == [1]
    seen = [ledger.trials("search"), ledger.optuna_study("search").trials]
    assert [numbers(trials) for trials in seen] == [[0, 2, 3, 4, 5]] * 2
    # At the next rung it is the worse of two.
    assert play(ledger, claim, 2.0) == "pruned"
    assert ledger.storage.get_trial(claim.trial._trial_id).last_step == 50
    assert take(ledger).trial.user_attrs["known"] == "at 0.5", "nobody else is among the best"


def test_a_study_ends_when_nobody_is_left_to_go_on_and_counts_each_point_once(tmp_path: Path) -> None:
    ledger = begin(tmp_path, trials=4)
    for loss in (1.0, 2.0, 3.0, 4.0):
        play(ledger, take(ledger), loss)
    assert not ledger.ended(("search",)), "one is the second of four now"
    claim = take(ledger)
    assert ledger.taken_up(claim.trial) == [1]
    assert ledger.claim(("search",)) is None
    play(ledger, claim, 2.0)
    assert ledger.ended(("search",))
    assert len(ledger.trials("search")) == 4
    assert summarise(replace_notes(ledger)).executed == 40 + 3 * 10
    _, _, more = begin_study(tmp_path / "tiny.yaml", trials=6)
    assert play(more, take(more), 5.0) == "pruned"
    assert play(more, take(more), 6.0) == "pruned"
    claim = take(more)
    assert ledger.taken_up(claim.trial) == [2], "of six, three"
    assert more.claim(("search",)) is None


def replace_notes(ledger: Ledger) -> Ledger:
    """A ledger whose finished trials have what a summary shows of them."""
    for trial in ledger.trials("search"):
        trial.user_attrs.update(schedule="", events=1, losses=[trial.value])
    return ledger


def test_limits_of_compute_hold_for_what_goes_on(tmp_path: Path) -> None:
    ledger = begin(tmp_path, trials=None, total_flops=70)
    for loss in (1.0, 2.0, 3.0):
        play(ledger, take(ledger), loss)
    claim = take(ledger)
    assert ledger.taken_up(claim.trial) == []
    play(ledger, claim, 4.0)
    assert ledger.claim(("search",)) is None, "40 and three times 10"
    assert ledger.ended(("search",))


def test_a_dead_worker_loses_neither_the_trial_nor_its_past(tmp_path: Path) -> None:
    ledger = begin(tmp_path)
    for loss in (1.0, 2.0, 3.0, 4.0):
        play(ledger, take(ledger), loss)
    for attempt in range(RETRIES + 1):
        claim = take(another(ledger, tmp_path))
        assert ledger.taken_up(claim.trial) == [1]
        assert ledger.retried(claim.trial) == list(range(5, 5 + attempt))
        assert numbers(ledger.trials("search")) == [0, 2, 3, 4, 5 + attempt]
        grow_stale(ledger)
    assert take(ledger).trial.user_attrs["known"] == "at 0.5", "it killed its worker too often"


def test_one_that_was_killed_before_it_was_queued_again_goes_on_all_the_same(tmp_path: Path) -> None:
    ledger = begin(tmp_path)
    for loss in (1.0, 2.0, 3.0, 4.0):
        play(ledger, take(ledger), loss)
    lost = take(ledger)
    ledger.storage.set_trial_state_values(lost.trial._trial_id, TrialState.FAIL)
    assert numbers(ledger.trials("search")) == [0, 1, 2, 3, 4]
    claim = take(ledger)
    assert (claim.trial.number, ledger.taken_up(claim.trial)) == (6, [1])


def test_an_interrupted_one_is_taken_before_all_others(tmp_path: Path) -> None:
    ledger = begin(tmp_path)
    for loss in (1.0, 2.0, 3.0, 4.0):
        play(ledger, take(ledger), loss)
    claim = take(ledger)
    ledger.give_back(claim)
    assert take(ledger).trial.number == claim.trial.number


def test_what_goes_on_comes_to_the_bits_of_a_run_that_was_never_stopped(tmp_path: Path) -> None:
    cheap = {"gigabytes": 1, "share": 1e9}
    whole = begin(tmp_path, stem="whole", pruner={"kind": "none"}, trunks=cheap)
    train_all(whole, replace(setting_of(whole, tmp_path), trunks=None))
    for stem in ("stored", "evicted"):
        ledger = begin(tmp_path, stem=stem, trunks=cheap)
        trunks = open_trunks(ledger.study, tmp_path / "runs" / stem)
        check(ledger, replace(setting_of(ledger, tmp_path), trunks=trunks), evicted=stem == "evicted")


def check(ledger: Ledger, setting: Setting, evicted: bool) -> None:
    """Compare what goes on, with what it had stored or without, with what was never stopped."""
    train_all(ledger, setting, evicted=evicted)
    records = [record for record in read_trials(setting.folder) if record.kind == "search"]
    going_on = [record for record in records if record.takes_up]
    assert going_on
    assert len(records) == 5
    alone = {record.name: record for record in read_trials(setting.folder.parent / "whole")}
    for record in records:
        other = alone[record.name]
        assert record.runs == other.runs
        if record.status == "finished":
            assert record.losses == other.losses
            assert record.charged == other.charged
            (identity,) = record.runs
            assert losses_of(setting.folder, identity) == losses_of(setting.folder.parent / "whole", identity)
    summary = summarise(ledger)
    assert (summary.ended, summary.planned) == (5, 5)
    assert summary.executed == sum(record.executed for record in read_trials(setting.folder))
    if evicted:
        assert any(record.executed >= record.charged for record in going_on), "it was trained again"
    else:
        assert all(record.executed < record.charged for record in going_on)


def losses_of(folder: Path, identity: str) -> list[str]:
    """The training losses that a run recorded."""
    path = folder / RUNS / identity / METRICS
    return [line.partition('"loss":')[2].split(",")[0] for line in path.read_text().splitlines()]


def train_all(ledger: Ledger, setting: Setting, evicted: bool = False) -> None:
    while (claim := ledger.claim()) is not None:
        if evicted and claim.kind == "search" and ledger.taken_up(claim.trial):
            assert setting.trunks is not None
            shutil.rmtree(setting.trunks.store.root)
        pursue(claim, ledger, setting, nothing)


def test_in_a_replay_the_best_half_of_each_rung_has_gone_on() -> None:
    table, budget = made_table(), made_table().study.budget
    pruner = Pruner(kind="halving", recovery=0.0)
    found = replay(table, 0, sampler=Sampler(kind="random"), pruner=pruner, trials=40)
    whole = replay(table, 0, sampler=Sampler(kind="random"), pruner=Pruner(kind="none"), trials=40)
    assert len(found.losses) > 40, "some were taken up"
    ended = [loss for loss in found.losses if loss is not None]
    assert min(ended) == min(loss for loss in whole.losses if loss is not None)
    assert len(ended) < 30
    assert sum(found.executed) < 0.8 * sum(whole.executed)
    assert sum(found.executed) <= sum(found.charged) < 40 * budget
