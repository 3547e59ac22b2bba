"""Studies in PostgreSQL: restarted during a search, lost commits, one driver wherever it runs."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy

from nasgrow.driver import Driver
from nasgrow.errors import UserError
from nasgrow.study import lock, storage
from nasgrow.study.storage import check_storage, checked_url, open_storage
from nasgrow.study.study import open_study
from nasgrow.study.study_folder import KnownStudy, opened
from tests.servers import Server, closing_storages, serving
from tests.study.studies import Quiet, run_study, write_study

pytestmark = pytest.mark.usefixtures("place")
TRIALS = 3


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def url(server: Server, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty database, which the environment names."""
    name = "t" + place.name.lower().translate({ord(sign): "_" for sign in "-.[]"})
    admin = sqlalchemy.create_engine(checked_url(server.url), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    admin.dispose()
    found = server.url.rpartition("/")[0] + f"/{name}"
    monkeypatch.setenv("NASGROW_STORAGE", found)
    with closing_storages():
        yield found


def small(folder: Path) -> Path:
    return write_study(
        folder,
        trials=TRIALS,
    )


def assert_same(url: str, known: KnownStudy, others: frozenset[str] = frozenset()) -> None:
    """Each trial has ended once, and Optuna shows what the records say."""
    assert known.state == "ended"
    assert (len(known.trials["baseline"]), len(known.trials["search"])) == (1, TRIALS)
    for kind, name in (("baseline", "tiny (baselines)"), ("search", "tiny")):
        shown = optuna.load_study(study_name=name, storage=open_storage(url)).trials
        records = known.trials[kind]  # type: ignore[index]
        assert {trial.state.name for trial in shown if trial.number not in records} <= others
        for trial in shown:
            if (record := records.get(trial.number)) is not None:
                assert record.status == "finished"
                assert trial.value == record.loss
                assert trial.intermediate_values == {round(100 * at): loss for at, loss in record.evaluations}
                assert trial.user_attrs["losses"] == record.losses


def happening(*happenings: Callable[[], None]) -> Callable[[Driver], None]:
    """Lets each thing happen after another evaluation of the search."""
    left = [*happenings]

    def watch(driver: Driver) -> None:
        told = sum(len(trial.evaluations) for trial in driver.trials["search"].values())
        if left and told > 5 * (len(happenings) - len(left)):
            left.pop(0)()

    return watch


def test_a_server_that_is_restarted_twice_during_a_search_does_no_harm(
    server: Server, url: str, tmp_path: Path
) -> None:
    quiet = Quiet(watch=happening(lambda: server.restart("fast"), lambda: server.restart("immediate")))
    _, folder, known = run_study(small(tmp_path), quiet=quiet)
    assert_same(url, known)
    assert not (folder / storage.DATABASE).exists()


def test_whatever_commit_is_lost_nothing_is_done_twice_or_not_at_all(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[bool] = []
    chance = random.Random(0)
    dialect = open_storage(url).engine.dialect
    commit, broken = type(dialect).do_commit, dialect.dbapi.OperationalError  # type: ignore[union-attr]

    def do_commit(self: Any, connection: Any) -> None:
        """Lose the connection: before the server has the commit, and after, in turns."""
        if chance.random() > 0.1:
            return commit(self, connection)
        lost.append(len(lost) % 2 == 0)
        if lost[-1]:
            commit(self, connection)
        connection.dbapi_connection.close()
        raise broken("the connection is lost")

    quiet = Quiet()
    with monkeypatch.context() as patch:
        patch.setattr(type(dialect), "do_commit", do_commit)
        _, _, known = run_study(small(tmp_path), quiet=quiet)
    assert lost.count(True) >= 3
    assert_same(url, known, frozenset({"RUNNING"}))
    assert all(warning.startswith("storage: ") for warning in quiet.warnings)
    _, _, known = run_study(small(tmp_path))
    assert_same(url, known, frozenset({"FAIL"}))


def test_a_server_that_stays_away_ends_the_search_with_one_line(
    server: Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "RETRY_SECONDS", 0.5)
    path = small(tmp_path)
    try:
        with pytest.raises(UserError, match=r"^storage: cannot be used: ") as end:
            run_study(path, quiet=Quiet(watch=happening(server.stop)))
    finally:
        server.start()
    assert "Quokka" not in str(end.value)
    _, _, known = run_study(path)
    assert_same(url, known)


@pytest.fixture
def driven(url: str, tmp_path: Path) -> Iterator[Path]:
    """The file of a study that a driver has opened; it is still at work."""
    path = small(tmp_path)
    study, folder = open_study(path)
    with opened(study, folder, "data", lambda *given: None, print):
        yield path


def second(path: Path) -> None:
    study, folder = open_study(path)
    with opened(study, folder, "data", lambda *given: None, print):
        pass


def test_a_driver_on_another_machine_is_refused_until_the_lease_has_run_out(
    driven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = socket.gethostname()
    monkeypatch.setattr(lock, "LOCK", ".lock-there")  # as where file locks do not reach other machines
    monkeypatch.setattr(lock, "LOOK_SECONDS", 0)
    monkeypatch.setattr(socket, "gethostname", lambda: "there")
    line = (
        rf"^tiny: process \d+ on {here} is running this study already; if it has died, try again in 1\d\d s"
    )
    with pytest.raises(UserError, match=line):
        second(driven)
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + lock.LEASE_SECONDS)
    second(driven)


def test_a_driver_whose_lease_another_has_taken_stops(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    study = optuna.create_study(storage=open_storage(url))
    lease = lock.Lease(study)
    lease.take()
    now = time.time
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "there")
        there.setattr(time, "time", lambda: now() + 2 * lock.LEASE_SECONDS)
        lock.Lease(study).take()
    monkeypatch.setattr(time, "monotonic", lambda before=time.monotonic: before() + lock.LEASE_SECONDS)
    with pytest.raises(UserError, match=r" on there is running this study already"):
        lease.renew()
    lease.release()
    with pytest.raises(UserError, match=r" on there is running this study already"):
        lease.take()


def test_a_server_is_found_fit_and_left_as_it_was(url: str) -> None:
    reached, works = check_storage(url)
    assert "***" in reached
    assert "a study with one trial was written, read and deleted" in works
    assert not optuna.get_all_study_names(open_storage(url))


def test_a_file_may_hold_the_url(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NASGROW_STORAGE")
    monkeypatch.setenv("NASGROW_STORAGE_FILE", str(tmp_path / "secret"))
    path = small(tmp_path)
    with pytest.raises(ValueError, match=r"^NASGROW_STORAGE_FILE: \S+/secret: cannot be read: no such file"):
        second(path)
    (tmp_path / "secret").write_text(url + "\n", encoding="utf-8")
    second(path)
    assert optuna.get_all_study_names(open_storage(url)) == [
        "tiny",
        "tiny (baselines)",
        "tiny (fixed shapes)",
    ]
