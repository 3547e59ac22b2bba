"""States behind a URL: shared by machines that share no folder, whatever the store does, to the same bits."""

from __future__ import annotations

import io
import math
import secrets
import signal
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec  # type: ignore[import-untyped]
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from nasgrow.training.loop import Interrupted
from nasgrow.training.objects import Away, Objects
from nasgrow.training.records import METRICS, read_metrics
from nasgrow.training.trunks import Mirrored, Remote, Trunks, mirror
from nasgrow.training.trunks.remote import pack
from tests.training.test_loop import timeless
from tests.training.test_trunk_keys import keys
from tests.training.test_trunk_processes import start, wait_for
from tests.training.test_trunk_store import key_of, put
from tests.training.test_trunks import (
    CASES,
    FIRST,
    TIMES,
    charged_at,
    make_run,
    outcome,
    run_in,
    schedule,
)

SECRET = "hunter2"


class Moody(MemoryFileSystem):  # type: ignore[misc]
    """A store in memory that fails, truncates what it takes, lists late, or takes its time."""

    protocol = "moody"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    moods: ClassVar[set[str]] = set()
    asked: ClassVar[list[str]] = []
    go: ClassVar[threading.Event] = threading.Event()

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if "fails" in self.moods:
            raise RuntimeError(f"no route to moody://me:{SECRET}@host\nand much more")

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._ask("ls")
        return [] if "lists late" in self.moods else super().ls(path, detail, **options)

    def info(self, path: str, **options: Any) -> Any:
        self._ask("info")
        return super().info(path, **options)

    def cat_file(self, path: str, *args: Any, **options: Any) -> Any:
        self._ask("cat")
        return super().cat_file(path, *args, **options)

    def pipe_file(self, path: str, value: bytes, *args: Any, **options: Any) -> Any:
        self._ask("pipe")
        return super().pipe_file(path, value, *args, **options)

    def get_file(self, *args: Any, **options: Any) -> None:
        self._ask("get")
        super().get_file(*args, **options)

    def put_file(self, lpath: str, rpath: str, *args: Any, **options: Any) -> None:
        self._ask("put")
        if "takes its time" in self.moods:
            assert self.go.wait(60)
        super().put_file(lpath, rpath, *args, **options)
        if "truncates" in self.moods:
            whole = super().cat_file(rpath)
            super().pipe_file(rpath, whole[: len(whole) // 2])


@pytest.fixture
def moods() -> Iterator[set[str]]:
    fsspec.register_implementation("moody", Moody, clobber=True)
    Moody.store.clear()
    Moody.asked.clear()
    Moody.go.clear()
    yield Moody.moods
    Moody.moods.clear()


@pytest.fixture
def url() -> str:
    """A place in memory that nobody else uses."""
    return f"memory://{secrets.token_hex(4)}"


def machine(root: Path, url: str, limit: float = 1e9) -> Mirrored:
    """The store of a machine with a folder of its own."""
    return Mirrored(root, limit, Remote(url))


def trunks_at(root: Path, url: str) -> Trunks:
    return Trunks(machine(root, url), TIMES, math.inf)


def done(where: Mirrored) -> None:
    """Wait until all is uploaded."""
    where.settle(lambda: False)
    assert not where._jobs


@pytest.mark.parametrize("kind", ["file", "memory", "moody"])
def test_objects_are_written_read_and_removed_in_every_store(
    tmp_path: Path, moods: set[str], kind: str
) -> None:
    objects = Objects(f"file://{tmp_path}/new" if kind == "file" else f"{kind}://{secrets.token_hex(4)}")
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"whole")
    assert objects.sizes() == {}
    assert not objects.holds("a")
    assert objects.read("a") is None
    assert not objects.download("a", target)
    objects.remove("a")
    assert objects.create("a", b"first")
    assert not objects.create("a", b"second")
    assert objects.read("a") == b"first"
    objects.write("a", b"third")
    assert objects.read("a", 2) == b"th"
    objects.upload("b", source)
    objects.upload("b", source)
    assert objects.holds("b")
    assert objects.download("b", target)
    assert target.read_bytes() == b"whole"
    assert objects.sizes() == {"a": 5, "b": 5}
    written = objects.modified("b")
    assert written is not None
    assert abs(written - time.time()) < 3600
    objects.remove("b")
    assert objects.sizes() == {"a": 5}


def test_a_file_that_is_written_is_not_seen_before_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, source = Objects(f"file://{tmp_path}/far"), tmp_path / "source"
    source.write_bytes(b"whole")

    def breaks(self: object, path: str, to: str) -> None:
        Path(to).write_bytes(b"wh")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.put_file", breaks)
    with pytest.raises(Away, match="No space left"):
        objects.upload("a", source)
    assert objects.sizes() == {}


def test_a_run_that_went_on_from_a_state_behind_a_url_is_the_run_alone_to_the_bit(
    tmp_path: Path, url: str
) -> None:
    first, second, shared = CASES["one event"]
    feeder, corpus = make_run(tmp_path, schedule=first)
    run, _ = make_run(tmp_path, schedule=second)
    alone = run_in(tmp_path / "alone", run, corpus)
    here, there = trunks_at(tmp_path / "here", url), trunks_at(tmp_path / "there", url)
    run_in(tmp_path / "feeder", feeder, corpus, here)
    result = run_in(tmp_path / "run", run, corpus, there)
    assert result.charged == alone.charged == alone.executed
    assert result.executed == result.charged - charged_at(run, shared)
    assert outcome(tmp_path / "run", result) == outcome(tmp_path / "alone", alone)
    assert set(Remote(url)) == {*here.store, *there.store}
    assert not Objects(url).sizes().keys() - {f"{key}.tar" for key in Remote(url)}, "leases are released"


def test_what_is_in_the_folder_is_not_downloaded(tmp_path: Path, moods: set[str]) -> None:
    where = machine(tmp_path / "here", "moody://x")
    key = put(where, 1)
    done(where)
    assert where.take(key, pytest.fail) == where.path(key)
    other = machine(tmp_path / "there", "moody://x")
    other.refresh()
    assert other.take(key, pytest.fail) == other.take(key, pytest.fail) == other.path(key)
    assert Moody.asked.count("get") == 1
    assert Moody.asked.count("put") == 1


def test_questions_are_answered_by_one_list(tmp_path: Path, moods: set[str]) -> None:
    far = Objects("moody://x")
    for number in range(300):
        far.write(f"{number:064x}.tar", b"state")
    Moody.asked.clear()
    where = machine(tmp_path, "moody://x")
    where.refresh()
    assert all(where.holds(f"{number:064x}") for number in range(300))
    assert where.latest([f"{number:064x}" for number in range(250, 350)]) == 49
    assert Moody.asked == ["ls"]


def test_a_state_that_is_not_listed_yet_is_found(tmp_path: Path, moods: set[str]) -> None:
    run, corpus = make_run(tmp_path)
    moods.add("lists late")
    run_in(tmp_path / "one", run, corpus, trunks_at(tmp_path / "here", "moody://x"))
    result = run_in(tmp_path / "two", run, corpus, trunks_at(tmp_path / "there", "moody://x"))
    assert result.executed == result.charged - charged_at(run, TIMES[-1])


def test_a_state_that_is_listed_and_gone_is_trained(tmp_path: Path, url: str) -> None:
    where, other = machine(tmp_path / "here", url), machine(tmp_path / "there", url)
    key = put(where, 1)
    done(where)
    assert other.latest([key]) == 0
    Remote(url).drop(key)
    assert other.take(key, pytest.fail) is None
    assert not other.holds(key)


def test_damaged_objects_are_named_and_replaced(tmp_path: Path, moods: set[str]) -> None:
    run, corpus = make_run(tmp_path, schedule=schedule(FIRST))
    alone = run_in(tmp_path / "alone", run, corpus)
    moods.add("truncates")
    here, there = trunks_at(tmp_path / "here", "moody://x"), trunks_at(tmp_path / "there", "moody://x")
    run_in(tmp_path / "one", run, corpus, here)
    moods.clear()
    far, told = Remote("moody://x"), list[str]()
    damaged = {key for key in far if far.fault(key) is not None}
    assert damaged == {*here.store}
    result = run_in(tmp_path / "two", run, corpus, there, warn=told.append)
    assert result.executed == result.charged
    assert outcome(tmp_path / "two", result) == outcome(tmp_path / "alone", alone)
    assert len(told) == len(damaged)
    assert all(line.startswith("moody://x/") and "passed over and dropped" in line for line in told)
    assert {key for key in far if far.fault(key) is None} == damaged


def test_a_state_that_is_damaged_in_the_folder_comes_whole_from_behind_the_url(
    tmp_path: Path, url: str
) -> None:
    where = machine(tmp_path, url)
    key = put(where, 1)
    done(where)
    (where.path(key) / "state").write_bytes(b"bad")
    told: list[str] = []
    folder = where.take(key, told.append)
    assert folder is not None
    assert (folder / "state").read_bytes() == b"x" * 1000
    assert len(told) == 1


def test_only_plain_files_are_unpacked(tmp_path: Path, url: str) -> None:
    where = machine(tmp_path / "here", url)
    key = put(where, 1)
    done(where)
    evil = tmp_path / "evil.tar"
    pack(where.path(key), evil)
    with tarfile.open(evil, "a") as archive:
        for name, kind in (("../out", tarfile.REGTYPE), ("link", tarfile.SYMTYPE), ("/abs", tarfile.REGTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, "/etc/passwd", 0
            archive.addfile(member, io.BytesIO())
    Remote(url).put(key, evil)
    other = machine(tmp_path / "there", url)
    other.refresh()
    folder = other.take(key, pytest.fail)
    assert folder is not None
    assert sorted(path.name for path in folder.iterdir()) == ["SHA256SUMS", "about.json", "state", "used"]
    assert not list(tmp_path.rglob("out"))


def test_without_the_network_a_run_ends_as_alone_with_one_warning(tmp_path: Path, moods: set[str]) -> None:
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    moods.add("fails")
    trunks, told = trunks_at(tmp_path / "here", "moody://x"), list[str]()
    result = run_in(tmp_path / "run", run, corpus, trunks, warn=told.append)
    assert outcome(tmp_path / "run", result) == outcome(tmp_path / "alone", alone)
    assert told == ["moody://x: cannot be used: no route to moody://***@host; training goes on without it"]
    assert len(Moody.asked) == 1, "it is left alone for a while"
    moods.clear()
    again = run_in(tmp_path / "again", run, corpus, trunks)
    assert again.executed == again.charged - charged_at(run, TIMES[-1]), "from the folder"


def test_what_could_not_be_uploaded_is_when_it_is_used(tmp_path: Path, moods: set[str]) -> None:
    where = machine(tmp_path, "moody://x")
    moods.add("fails")
    key = put(where, 1)
    done(where)
    moods.clear()
    where._again = -math.inf  # after a while
    assert where.take(key, pytest.fail) is not None
    done(where)
    assert list(Remote("moody://x")) == [key]


def test_training_does_not_wait_for_uploads_and_few_wait_for_it(
    tmp_path: Path, moods: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "WAITING", 3)
    monkeypatch.setattr(mirror, "STOPPING", 0.05)
    where = machine(tmp_path, "moody://x")
    moods.add("takes its time")
    stored = {put(where, number) for number in range(6)}
    where.settle(lambda: True)  # asked to stop: it does not wait
    assert not set(Remote("moody://x"))
    Moody.go.set()
    done(where)
    assert set(where) == stored
    assert len(set(Remote("moody://x"))) == 3
    assert not [name for name in Objects("moody://x").sizes() if name.endswith(".alive")]


def test_a_state_that_the_folder_has_no_room_for_is_not_downloaded_for_ever(tmp_path: Path, url: str) -> None:
    where, small = machine(tmp_path / "here", url), machine(tmp_path / "there", url, limit=100)
    key = put(where, 1)
    done(where)
    assert small.latest([key]) == 0
    assert small.take(key, pytest.fail) is None
    assert not small.holds(key)


def test_two_machines_train_what_they_have_in_common_once(tmp_path: Path) -> None:
    one, corpus = make_run(tmp_path, schedule=schedule(FIRST))
    two, _ = make_run(tmp_path)
    run_in(tmp_path / "alone", two, corpus)
    processes = [start(tmp_path, name, 0.005, f"file://{tmp_path}/far") for name in ("one", "two")]
    for name in ("one", "two"):
        wait_for(tmp_path / f"{name}.ready")
    (tmp_path / "go").touch()
    assert [process.wait() for process in processes] == [0, 0]
    executed = [int(process.out) for process in processes]
    lengths = [run.stages[-1].charged(run.stages[-1].end) for run in (one, two)]
    assert sum(executed) == sum(lengths) - charged_at(two, 0.6)
    assert timeless(list(read_metrics(tmp_path / "two"))) == timeless(list(read_metrics(tmp_path / "alone")))


def test_the_lease_of_a_machine_that_died_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "LOOK", 0.05)
    monkeypatch.setattr(mirror, "SILENCE", 0.3)
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    far = f"file://{tmp_path}/far"
    (tmp_path / "go").touch()
    holder = start(tmp_path, "one", 60.0, far)
    wait_for(tmp_path / "one.training")
    holder.kill()
    assert holder.wait() == -signal.SIGKILL
    assert [name for name in Objects(far).sizes() if name.endswith(".alive")]
    result = run_in(tmp_path / "run", run, corpus, trunks_at(tmp_path / "here", far))
    assert result.executed == result.charged
    assert outcome(tmp_path / "run", result) == outcome(tmp_path / "alone", alone)


def test_who_shares_the_folder_takes_up_the_lease_of_one_that_died_at_once(tmp_path: Path, url: str) -> None:
    first = machine(tmp_path / "here", url)
    lock = first.try_lock(key_of(1))
    assert isinstance(lock, mirror._Leased)
    lock.lock.release()  # as the system does
    again = machine(tmp_path / "here", url).try_lock(key_of(1))
    assert again is not None
    assert machine(tmp_path / "there", url).try_lock(key_of(1)) is None
    again.release()


def test_a_lease_shows_life_while_its_owner_trains_and_uploads(
    tmp_path: Path, moods: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "PULSE", 0.02)
    here, there = machine(tmp_path / "here", "moody://x"), machine(tmp_path / "there", "moody://x")
    moods.add("takes its time")
    key = key_of(1)

    def lease() -> bytes | None:
        return Objects("moody://x").read(f"{key}.alive")

    def renewed() -> None:
        before, deadline = lease(), time.monotonic() + 60
        while lease() == before:
            assert time.monotonic() < deadline
            here.beat(key)
            time.sleep(0.01)

    lock = here.try_lock(key)
    assert lock is not None
    renewed()
    monkeypatch.setattr(mirror, "SILENCE", 0.0)  # as if training had shown no life for long
    time.sleep(0.1)
    before = lease()
    time.sleep(0.2)
    assert lease() == before
    here.put(key, lambda folder: None, {"charged": 1, "before": []})
    lock.release()
    renewed()
    monkeypatch.setattr(mirror, "SILENCE", 60.0)
    assert there.try_lock(key) is None, "it is being uploaded"
    Moody.go.set()
    done(here)
    assert lease() is None
    there._waits.clear()  # after a while
    found = there.try_lock(key)
    assert found is not None
    assert there.holds(key)
    found.release()


def test_other_machines_are_asked_where_that_is_cheap_beside_training(
    tmp_path: Path, moods: set[str]
) -> None:
    run, corpus = make_run(tmp_path)
    trunks = Trunks(machine(tmp_path / "here", "moody://x"), TIMES, 1e-9)
    trunks.worth = lambda seconds, flops=0: True  # type: ignore[method-assign]
    run_in(tmp_path / "run", run, corpus, trunks)
    assert Moody.asked.count("put") == len(TIMES), "states are stored and uploaded all the same"
    assert Moody.asked.count("pipe") == 1, "but one lease was asked for, and then none"


def test_who_waits_for_another_machine_can_be_stopped(tmp_path: Path, url: str) -> None:
    run, corpus = make_run(tmp_path)
    lock = machine(tmp_path / "there", url).try_lock(keys(run)[10])
    assert lock is not None
    with pytest.raises(Interrupted):
        run_in(tmp_path / "run", run, corpus, trunks_at(tmp_path / "here", url), stop=lambda: True)
    assert not (tmp_path / "run" / METRICS).exists()


def test_the_states_behind_a_url_can_be_listed_verified_and_pruned(tmp_path: Path, url: str) -> None:
    where, far = machine(tmp_path, url), Remote(url)
    stored = [put(where, number, charged=100 + number) for number in range(4)]
    done(where)
    entries = {entry.key: entry for entry in far.entries()}
    assert [entries[key].about["charged"] for key in stored] == [100, 101, 102, 103]
    assert far.size() == sum(entry.size for entry in entries.values())
    assert all(far.fault(key) is None for key in stored)
    assert far.prune(2.5 * entries[stored[0]].size) == 2
    assert set(far) == set(stored[2:])
