"""The ledger: every trial is taken by one worker, counted once, and never lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from nasgrow.search.agenda import IDLE, asked
from nasgrow.search.baselines import PEAK
from nasgrow.search.ledger import SIZE, Claim, Ledger
from nasgrow.search.storage import GRACE, open_storage, storage_url
from tests.search.studies import SPACE, begin_study, write_study
from tests.training.test_files import full_disk

pytestmark = pytest.mark.usefixtures("place")


def start(folder: Path, trials: int = 3, **changes: Any) -> Ledger:
    return begin_study(write_study(folder, trials=trials, **changes))[2]


def another(ledger: Ledger, folder: Path) -> Ledger:
    """The same ledger, as another process opens it."""
    runs = folder / "runs" / ledger.study.config.name
    return Ledger(ledger.study, runs, open_storage(storage_url(ledger.study.config, runs)))


def take(ledger: Ledger) -> Claim:
    claim = ledger.claim()
    assert claim is not None
    return claim


def play(ledger: Ledger, claim: Claim, loss: float | None) -> None:
    """What a worker does, without training."""
    if claim.kind == "baseline":
        ledger.size_of(claim.trial)
    else:
        ledger.study.space.sample(claim.trial)
    ledger.tell(claim, None if loss is None else [loss])


def play_all(ledger: Ledger) -> list[Claim]:
    """Play what there is; the middle of three learning rates is the best, so that none is added."""
    played = []
    while (claim := ledger.claim()) is not None:
        loss = 2.0 if claim.kind == "search" or claim.trial.number % 3 == 1 else 3.0
        play(ledger, claim, loss)
        played.append(claim)
    return played


THREE = {"shares": [], "learning_rates": [0.003, 0.006, 0.012]}


def test_baselines_come_first_then_known_schedules_then_the_sampler(tmp_path: Path) -> None:
    ledger = start(tmp_path, trials=4, baselines=THREE)
    played = play_all(ledger)
    assert [claim.kind for claim in played] == ["baseline"] * 6 + ["search"] * 4
    assert [claim.trial.params[PEAK] for claim in played[:6]] == [0.003, 0.006, 0.012] * 2
    assert [claim.trial.params[SIZE] for claim in played[:6]] == ["final"] * 3 + ["start"] * 3
    known = [trial.user_attrs.get("known") for trial in ledger.trials("search")]
    assert known == ["no growth", "half", None, None]
    assert ledger.ended()


def test_no_view_of_the_search_sees_a_baseline(tmp_path: Path) -> None:
    ledger = start(tmp_path, baselines=THREE)
    play_all(ledger)
    search, baselines = ledger.optuna_study("search"), ledger.optuna_study("baseline")
    assert search.study_name == "tiny"
    assert baselines.study_name == "tiny (baselines)"
    assert not any(SIZE in trial.params for trial in search.trials)
    assert len(search.trials) == 3


def test_a_trial_is_taken_once_however_many_ask(tmp_path: Path) -> None:
    ledger = start(tmp_path, trials=6, baselines={"shares": [], "learning_rates": [0.003, 0.006]})
    ledgers = [another(ledger, tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        claims = [
            c for group in pool.map(lambda own: [own.claim() for _ in range(4)], ledgers) for c in group
        ]
    taken = [(claim.kind, claim.trial.number) for claim in claims if claim is not None]
    assert len(taken) == len(set(taken)) == 4 + 6, "two sizes at two rates, six trials"
    assert not ledger.ended()


def test_the_number_of_trials_is_exact_and_more_can_be_added(tmp_path: Path) -> None:
    path = write_study(tmp_path, trials=3, baselines=THREE)
    _, _, ledger = begin_study(path)
    play_all(ledger)
    assert len(ledger.trials("search")) == 3
    _, _, more = begin_study(path, trials=5)
    assert not more.ended()
    assert len(play_all(more)) == 2
    assert more.ended()
    _, _, fewer = begin_study(path, trials=2)
    assert fewer.ended()


def test_limits_of_compute_and_time_end_a_study(tmp_path: Path) -> None:
    ledger = start(tmp_path, trials=None, total_flops=2.5e8, baselines=THREE)  # type: ignore[arg-type]
    count = 0
    while (claim := ledger.claim()) is not None:
        if claim.kind == "search":
            count += 1
            claim.trial.set_user_attr("executed", 10**8)
        play(ledger, claim, 2.0 if claim.trial.number % 3 == 1 else 3.0)
    assert count == 3
    ledger = start(tmp_path, trials=None, name="timed", hours=0.5, baselines=THREE)  # type: ignore[arg-type]
    count = 0
    while (claim := ledger.claim()) is not None:
        if claim.kind == "search":
            count += 1
            claim.trial.set_user_attr("seconds", 1000.0)
        play(ledger, claim, 2.0 if claim.trial.number % 3 == 1 else 3.0)
    assert count == 2


def test_a_trial_given_back_is_taken_again_with_its_parameters(tmp_path: Path) -> None:
    ledger = start(tmp_path, trials=3, baselines=THREE)
    claims = [take(ledger) for _ in range(9)]
    last = claims[-1]
    ledger.study.space.sample(last.trial)
    ledger.give_back(last)
    other = another(ledger, tmp_path)
    again = take(other)
    assert again.trial.number == last.trial.number
    other.study.space.sample(again.trial)
    assert again.trial.params == last.trial.params


def grow_stale(ledger: Ledger) -> None:
    """Let the heartbeat of every trial be long ago."""
    assert isinstance(ledger.storage, RDBStorage)
    with ledger.storage.engine.begin() as connection:
        ago = f"datetime('now', '-{GRACE + 5} seconds')"
        connection.execute(sqlalchemy.text(f"UPDATE trial_heartbeats SET heartbeat = {ago}"))


def test_the_trial_of_a_dead_worker_is_offered_again_with_its_parameters(tmp_path: Path) -> None:
    ledger = start(tmp_path, trials=3, baselines=THREE)
    play_all(ledger)
    _, _, ledger = begin_study(tmp_path / "tiny.yaml", trials=4)
    lost = take(ledger)
    ledger.study.space.sample(lost.trial)
    assert another(ledger, tmp_path).claim() is None, "it lives"
    grow_stale(ledger)
    other = another(ledger, tmp_path)
    found = take(other)
    assert found.trial.number != lost.trial.number
    other.study.space.sample(found.trial)
    assert found.trial.params == lost.trial.params
    assert len(other.trials("search")) == 4, "the dead one does not count"
    ledger.tell(lost, [1.0])  # it was not dead after all: the other one has the trial now
    other.tell(found, [2.0])
    assert other.ended()
    values = [trial.value for trial in other.trials("search")]
    assert values.count(2.0) == 4
    assert 1.0 not in values


def test_a_worker_that_dies_right_after_taking_a_trial_is_noticed(tmp_path: Path) -> None:
    ledger = start(tmp_path, trials=2, baselines=THREE)
    for _ in range(8):
        take(ledger)
    grow_stale(ledger)
    assert len(play_all(another(ledger, tmp_path))) == 8
    assert another(ledger, tmp_path).ended()


def test_a_lost_retry_is_made_up_for(tmp_path: Path) -> None:
    """Killed between failing a dead worker's trial and queueing it again."""
    ledger = start(tmp_path, trials=3, baselines=THREE)
    claims = [take(ledger) for _ in range(9)]
    ledger.storage.set_trial_state_values(claims[-1].trial._trial_id, TrialState.FAIL)
    assert take(ledger).kind == "search"
    assert len(ledger.trials("search")) == 3


def test_learning_rates_are_extended_beyond_the_edge(tmp_path: Path) -> None:
    ledger = start(tmp_path, baselines=THREE)
    for loss in (3.0, 2.0, 1.0):
        play(ledger, take(ledger), loss)
    rates = [asked(trial)[PEAK] for trial in ledger.trials("baseline") if asked(trial)[SIZE] == "final"]
    assert rates == pytest.approx([0.003, 0.006, 0.012, 0.024])


def test_an_extension_that_a_death_prevented_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_study(tmp_path, baselines=THREE)
    _, _, ledger = begin_study(path)
    monkeypatch.setattr(Ledger, "_extend", lambda self, size: None)
    for loss in (3.0, 2.0, 1.0):
        play(ledger, take(ledger), loss)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path.parent / "search-cache"))
    assert len(ledger.trials("baseline")) == 6
    _, _, again = begin_study(path)
    assert len(again.trials("baseline")) == 7


def test_whoever_asks_sees_what_was_just_said_of_its_own_trial(tmp_path: Path) -> None:
    """It is written a moment later: a pruner or a tree search cannot wait for that."""
    _, _, ledger = begin_study(write_study(tmp_path, trials=2, baselines=THREE))
    claim = ledger.claim(("search",))
    assert claim is not None
    for step in range(0, 25, 5):
        claim.trial.report(2.0, step)
    (shown,) = ledger.optuna_study("search").get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    assert list(shown.intermediate_values) == [0, 5, 10, 15, 20]


def test_a_point_that_is_taken_is_known_as_everybody_reads_it(tmp_path: Path) -> None:
    ledger = start(tmp_path, trials=6, baselines={"shares": []})
    other = another(ledger, tmp_path)
    while (claim := ledger.claim()) is not None:
        number, trial_id = claim.trial.number, claim.trial._trial_id
        known, read = (one.storage.get_trial(trial_id) for one in (ledger, other))
        assert known == read
        assert known.state == TrialState.RUNNING
        kind = claim.kind
        seen = [one.optuna_study(kind).get_trials()[number] for one in (ledger, other)]
        assert seen == [known, known]
        play(ledger, claim, 2.0)
        assert other.storage.get_trial(trial_id).state == TrialState.COMPLETE


def test_resuming_replays_no_trial(tmp_path: Path) -> None:
    """The sampler's seed depends on the trial: the second half of a study does not repeat the first."""
    space = {**SPACE, "times": {"low": 0.01, "high": 0.7, "step": 0.01}}
    options: dict[str, Any] = {
        "space": space,
        "sampler": {"kind": "random"},
        "baselines": THREE,
        "budget": {"flops": 1e9},
    }
    path = write_study(tmp_path, trials=6, **options)
    _, _, ledger = begin_study(path)
    play_all(ledger)
    _, _, again = begin_study(path, trials=10)
    play_all(again)
    drawn = [tuple(trial.params.values()) for trial in again.trials("search")[2:]]
    assert len(set(drawn)) == len(drawn) == 8


def test_a_baseline_given_up_with_its_worker_is_asked_for_again(tmp_path: Path) -> None:
    """Killed between failing a dead worker's baseline and queueing it again, then the same command."""
    ledger = start(tmp_path, baselines=THREE)
    claims = [take(ledger) for _ in range(6)]
    ledger.storage.set_trial_state_values(claims[1].trial._trial_id, TrialState.FAIL)
    assert len(ledger.trials("baseline")) == 5
    _, _, again = begin_study(tmp_path / "tiny.yaml")
    rates = sorted(asked(trial)[PEAK] for trial in again.trials("baseline"))
    assert rates == [0.003, 0.003, 0.006, 0.006, 0.012, 0.012]


def test_trials_that_find_only_what_was_trained_end_a_study_without_a_number_of_them(tmp_path: Path) -> None:
    ledger = start(tmp_path, trials=None, total_flops=1e12, baselines=THREE)  # type: ignore[arg-type]
    count = 0
    while (claim := ledger.claim()) is not None:
        count += claim.kind == "search"
        claim.trial.set_user_attr("executed", 0)
        play(ledger, claim, 2.0 if claim.trial.number % 3 == 1 else 3.0)
    assert count == IDLE
    assert ledger.ended()


def test_a_full_disk_damages_no_ledger(tmp_path: Path) -> None:
    ledger = start(tmp_path, trials=3, baselines=THREE)
    claim = take(ledger)
    files = (tmp_path / "runs" / "tiny").glob("study.db*")
    long = "x" * 10**6
    with (
        full_disk(max(file.stat().st_size for file in files)),
        pytest.raises((SQLAlchemyError, StorageInternalError)),
    ):
        claim.trial.study.set_user_attr("long", long)
    play(ledger, claim, 3.0)
    assert len(play_all(another(ledger, tmp_path))) == 6 + 3 - 1
    assert ledger.ended()


def test_fewer_trials_leave_known_schedules_untried(tmp_path: Path) -> None:
    path = write_study(tmp_path, trials=4, baselines=THREE)
    begin_study(path)
    _, _, fewer = begin_study(path, trials=1)
    assert [claim.kind for claim in play_all(fewer)].count("search") == 1
    assert fewer.ended()


@pytest.mark.parametrize("kind", ["tpe", "random", "gp", "cma-es"])
def test_every_sampler_draws_beyond_its_startup(kind: str, tmp_path: Path) -> None:
    space = {**SPACE, "start": {"low": 0.5, "high": 1.0, "step": 0.25}, "known": {}}
    options = {"space": space, "sampler": {"kind": kind, "startup": 2}, "baselines": THREE}
    ledger = start(tmp_path, trials=6, **options)
    play_all(ledger)
    assert ledger.ended()
    assert all(len(trial.params) == 3 for trial in ledger.trials("search"))
