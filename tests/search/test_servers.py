"""The ledger on real database servers: lost connections, lost answers, many machines at once."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from time import time_ns
from typing import Any

import pytest
import sqlalchemy
from optuna.trial import TrialState

from nasgrow.search import database
from nasgrow.search.agenda import asked
from nasgrow.search.check import check_storage
from nasgrow.search.database import Away, Database
from nasgrow.search.ledger import KINDS, Claim, Ledger
from nasgrow.search.life import reopen
from nasgrow.search.storage import RETRIES, open_storage, with_driver
from nasgrow.search.study import open_study
from tests.search.studies import SPACE, begin_study, write_study
from tests.servers import PASSWORD, MariaDB, Postgres, Server, closing_storages, serving

pytestmark = pytest.mark.usefixtures("place")
ON_ONE = pytest.mark.parametrize("server", [Postgres], indirect=True, ids=lambda kind: kind.name)
"""For what has nothing to do with the server but that there is one."""
BASELINES = {"shares": [], "start": False, "learning_rates": [0.003, 0.006, 0.012]}


@pytest.fixture(scope="module", params=[Postgres, MariaDB], ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(request.param) as running:
        yield running


@pytest.fixture
def url(server: Server, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty database, which the environment names."""
    name = "t" + place.name.lower().translate({ord(sign): "_" for sign in "-.[]"})
    admin = sqlalchemy.create_engine(with_driver(server.url), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    admin.dispose()
    found = server.url.rpartition("/")[0] + f"/{name}"
    monkeypatch.setenv("NASGROW_STORAGE", found)
    monkeypatch.setattr(database, "FIRST_PAUSE", 0.001)
    with closing_storages():
        yield found


def play(ledger: Ledger, claim: Claim) -> None:
    """What a worker does, without training; the middle learning rate is the best."""
    trial = claim.trial
    if claim.kind == "baseline":
        ledger.size_of(trial)
    else:
        ledger.study.space.sample(trial)
    trial.set_user_attr("number", trial.number)
    trial.report(3.0, 50)
    ledger.tell(claim, [2.0 if claim.kind == "search" or trial.number % 3 == 1 else 3.0])


def play_all(ledger: Ledger) -> int:
    count = 0
    while (claim := ledger.claim()) is not None:
        play(ledger, claim)
        count += 1
    return count


def states(ledger: Ledger) -> list[str]:
    return [trial.state.name for kind in KINDS for trial in ledger.optuna_study(kind).get_trials()]


def assert_each_once(ledger: Ledger, trials: int) -> None:
    """Three baselines and so many trials, each told once, none given up; all whole."""
    assert ledger.ended()
    for kind, count in zip(KINDS, (3, trials), strict=True):
        found = ledger.optuna_study(kind).get_trials()
        assert [trial.state for trial in found] == [TrialState.COMPLETE] * count
        assert [trial.number for trial in found] == list(range(count))
        assert all(trial.user_attrs["number"] == trial.number for trial in found)
        assert all(trial.intermediate_values == {50: 3.0} for trial in found)


def test_a_server_is_found_fit_and_left_as_it_was(url: str) -> None:
    *_, crowd, skipped = check_storage(url)
    assert "lose no write" in crowd
    assert skipped == "what another has locked is passed over"
    engine = sqlalchemy.create_engine(with_driver(url))
    assert sqlalchemy.inspect(engine).get_table_names() == []
    engine.dispose()


def break_commits(storage: Database, monkeypatch: pytest.MonkeyPatch, share: float) -> list[bool]:
    """Lose the connection at a share of all commits: before the server has it, and after, in turns."""
    dialect, chance = storage.engine.dialect, random.Random(0)
    assert dialect.dbapi is not None
    broken = dialect.dbapi.OperationalError
    commit, lost = dialect.do_commit, list[bool]()

    def do_commit(connection: Any) -> None:
        if chance.random() > share:
            commit(connection)
            return
        lost.append(len(lost) % 2 == 0)
        if lost[-1]:
            commit(connection)
        connection.dbapi_connection.close()
        raise broken("the connection is lost")

    monkeypatch.setattr(dialect, "do_commit", do_commit)
    return lost


def test_whatever_commit_is_lost_nothing_is_done_twice_or_not_at_all(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, ledger = begin_study(write_study(tmp_path, trials=5, baselines=BASELINES))
    assert isinstance(ledger.storage, Database)
    with monkeypatch.context() as context:
        lost = break_commits(ledger.storage, context, 0.25)
        assert play_all(ledger) == 3 + 5
    assert lost.count(True) >= 3
    assert_each_once(ledger, 5)


def test_connections_that_the_server_ends_are_made_again(server: Server, url: str, tmp_path: Path) -> None:
    _, _, ledger = begin_study(write_study(tmp_path, trials=3, baselines=BASELINES))
    killer = sqlalchemy.create_engine(with_driver(url), isolation_level="AUTOCOMMIT")
    with killer.connect() as connection:
        while (claim := ledger.claim()) is not None:
            server.end_others(connection)
            play(ledger, claim)
            server.end_others(connection)
            ledger.trials("search")  # Optuna tries this one again by itself, on the connection that is lost
            server.end_others(connection)
    killer.dispose()
    assert_each_once(ledger, 3)


def test_a_server_that_stays_away_ends_with_one_line(
    server: Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, ledger = begin_study(write_study(tmp_path, trials=3, baselines=BASELINES))
    claim = ledger.claim()
    assert claim is not None
    monkeypatch.setattr(database, "PATIENCE", 0.5)
    server.stop()
    try:
        for ask in (ledger.claim, lambda: play(ledger, claim), ledger.ended):
            line = rf"^storage: {server.driven}://\*\*\*@127.0.0.1:\d+/\S+ cannot be reached: [^(\n]"
            with pytest.raises(Away, match=line) as end:
                ask()
            assert "\n" not in str(end.value)
            assert "Quokka" not in str(end.value)
        with pytest.raises(ValueError, match=r"cannot be used: [^(\n].*refused"):
            open_storage(url)
    finally:
        server.start()
    play(ledger, claim)
    assert play_all(ledger) == 3 + 3 - 1
    assert_each_once(ledger, 3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # attempts that came second
def test_many_that_open_a_new_database_at_once_find_its_tables_made(url: str) -> None:
    together = Barrier(4)

    def opened(_: int) -> list[str]:
        together.wait()
        return sqlalchemy.inspect(open_storage(url).engine).get_table_names()

    with ThreadPoolExecutor(4) as pool:
        assert all("trials" in tables for tables in pool.map(opened, range(4)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # attempts that came second
def test_many_begin_at_once(url: str, tmp_path: Path) -> None:
    """Tables, studies and queue are made once; each trial is taken once."""
    path = write_study(tmp_path, trials=9, baselines=BASELINES)
    with ThreadPoolExecutor(4) as pool:
        ledgers = list(pool.map(lambda _: begin_study(path)[2], range(4)))
        assert sum(pool.map(play_all, ledgers)) == 3 + 9
    assert_each_once(ledgers[0], 9)


def test_signs_of_life_are_compared_by_the_servers_clock(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines of other time zones and with clocks that are hours off take nobody for dead."""
    _, _, ledger = begin_study(write_study(tmp_path, trials=3, baselines=BASELINES))
    claims = [ledger.claim() for _ in range(6)]
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    with monkeypatch.context() as clock:
        clock.setattr("time.time", lambda: time_ns() / 1e9 + 7200)
        other = reopen(*open_study(tmp_path / "tiny.yaml"))
        assert other.claim() is None
        other.release_stale()
    assert states(other) == ["RUNNING"] * len(claims)


def test_after_an_outage_nobody_is_taken_for_dead_before_signs_of_life_can_come(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, ledger = begin_study(write_study(tmp_path, trials=3, baselines=BASELINES))
    assert ledger.claim() is not None
    assert isinstance(ledger.storage, Database)
    with ledger.storage.engine.begin() as connection:
        connection.execute(
            sqlalchemy.text("UPDATE trial_heartbeats SET heartbeat = now() - interval '1' hour")
        )
    with monkeypatch.context() as context:
        lost = break_commits(ledger.storage, context, 0.5)
        while not lost:
            assert not ledger.ended()
    ledger.release_stale()
    assert states(ledger).count("FAIL") == 0
    other = reopen(*open_study(tmp_path / "tiny.yaml"))
    other.release_stale()
    assert states(ledger).count("FAIL") == 0, "nor by one that has just come"
    monkeypatch.setattr(other.storage, "_back", -math.inf)
    other.release_stale()
    assert states(ledger).count("FAIL") == 1


@pytest.mark.usefixtures("url")
def test_a_trial_that_is_counted_out_is_offered_again_a_few_times(tmp_path: Path) -> None:
    alone = {**SPACE, "known": {}}  # nothing else waits
    _, _, ledger = begin_study(write_study(tmp_path, trials=3, baselines=BASELINES, space=alone))

    def claimed() -> Claim:
        claim = ledger.claim()
        assert claim is not None
        return claim

    while (claim := claimed()).kind == "baseline":
        play(ledger, claim)

    def point(claim: Claim) -> dict[str, Any]:
        return asked(ledger.storage.get_trial(claim.trial._trial_id))

    first = point(claim)
    for _ in range(RETRIES):
        assert ledger.count_out(claim), "it is offered again"
        claim = claimed()
        assert point(claim) == first
    assert not ledger.count_out(claim)
    assert states(ledger).count("FAIL") == RETRIES + 1
    assert point(claimed()) != first


@ON_ONE
def test_machines_that_share_the_database_but_not_the_folder_are_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records, runs and trunks would be divided, and no report would see them all."""
    path = write_study(tmp_path, baselines=BASELINES)
    _, folder, _ = begin_study(path)
    begin_study(path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with pytest.raises(
        ValueError, match=r"^runs/tiny: the study is kept in \S+/runs/tiny: .* share"
    ) as refusal:
        begin_study(path)
    assert "\n" not in str(refusal.value)
    assert not (elsewhere / "runs" / "tiny").exists()
    (elsewhere / "runs").mkdir(exist_ok=True)
    (elsewhere / "runs" / "tiny").symlink_to(tmp_path / folder)  # as a shared file system shows it
    assert begin_study(path)[2].trials("baseline")
    reopen(*open_study(path))


@ON_ONE
def test_a_file_may_hold_the_url(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NASGROW_STORAGE")
    monkeypatch.setenv("NASGROW_STORAGE_FILE", str(tmp_path / "secret"))
    with pytest.raises(ValueError, match=r"^NASGROW_STORAGE_FILE: \S+/secret: cannot be read: no such file"):
        begin_study(write_study(tmp_path))
    (tmp_path / "secret").write_text(url + "\n", encoding="utf-8")
    _, folder, ledger = begin_study(write_study(tmp_path))
    assert isinstance(ledger.storage, Database)
    assert ledger.storage.served
    assert not any(
        PASSWORD in path.read_text(errors="ignore") for path in folder.rglob("*") if path.is_file()
    )
