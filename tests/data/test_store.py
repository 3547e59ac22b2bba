from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from filelock import FileLock

from nasgrow.config import SavedTokens
from nasgrow.data.store import META, FolderCache, default_cache, fingerprint
from nasgrow.data.tokenizers import open_saved
from nasgrow.errors import UserError
from tests.data.corpora import Log


class Maker:
    """Makes a folder, and counts."""

    def __init__(self, size: int = 1000) -> None:
        self.size, self.calls = size, 0

    def __call__(self, folder: Path) -> Mapping[str, object]:
        self.calls += 1
        (folder / "tokens").write_bytes(b"x" * self.size)
        (folder / "scratch").mkdir()
        (folder / "scratch" / "large").write_bytes(b"y" * 100)
        return {"answer": 42}


@pytest.fixture
def store(tmp_path: Path) -> FolderCache:
    return FolderCache(tmp_path / "cache" / "data")


def contents(store: FolderCache) -> set[str]:
    return {path.name for path in store.root.iterdir() if path.suffix != ".lock"}


def test_a_folder_is_made_once_with_its_note(store: FolderCache) -> None:
    make = Maker()
    entries = [store.get("name", make, Log()) for _ in range(3)]
    assert make.calls == 1
    assert all(entry == entries[0] for entry in entries)
    assert entries[0].info == {"answer": 42}
    assert entries[0].folder == store.root / "name"
    assert {path.name for path in entries[0].folder.iterdir()} == {"tokens", META}
    assert contents(store) == {"name"}


@pytest.mark.parametrize("size", [1000, 33_000_000], ids=["hashed", "large"])
def test_a_damaged_folder_is_made_again(store: FolderCache, size: int) -> None:
    make = Maker(size)
    folder = store.get("name", make, Log()).folder
    tokens, meta = folder / "tokens", folder / META
    whole, whole_meta = tokens.read_bytes(), meta.read_bytes()

    def cut() -> None:
        os.truncate(tokens, size - 1)

    def lengthen() -> None:
        tokens.write_bytes(whole + b"x")

    def change() -> None:
        tokens.write_bytes(b"z" + whole[1:])

    damages: list[Callable[[], object]] = [cut, lengthen, tokens.unlink, meta.unlink]
    damages += [] if size > 1000 else [change]
    for text in (b"", b"{}", b"[]", b"null", b"\xff", whole_meta[:-9], whole_meta.replace(b"name", b"nama")):
        damages.append(partial(meta.write_bytes, text))
    for number, damage in enumerate(damages):
        damage()
        assert store.find("name") is None
        store.get("name", make, Log())
        assert make.calls == number + 2
        assert tokens.read_bytes() == whole
        assert meta.read_bytes() == whole_meta


def test_a_maker_that_fails_leaves_nothing(store: FolderCache) -> None:
    def fail(folder: Path) -> Mapping[str, object]:
        (folder / "half").write_bytes(b"x")
        raise ValueError("no text")

    with pytest.raises(ValueError, match=r"^no text$"):
        store.get("name", fail, Log())
    assert contents(store) == set()
    assert store.get("name", Maker(), Log()).info == {"answer": 42}


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError, match=r"cannot write the data cache in '.*file/data': .*NASGROW_CACHE"
    ) as caught:
        FolderCache(tmp_path / "file" / "data").get("name", Maker(), Log())
    assert caught.value.__suppress_context__
    assert "\n" not in str(caught.value)


def test_leftovers_of_dead_writers_are_removed_and_those_of_living_ones_are_not(store: FolderCache) -> None:
    for name in ("name", "dead", "alive"):
        (store.root / f"{name}.partial" / "scratch").mkdir(parents=True)
        (store.root / f"{name}.partial" / META).write_text("{}")
    with FileLock(store.root / "alive.lock"):
        store.get("name", Maker(), Log())
    assert contents(store) == {"name", "alive.partial"}


def test_others_wait_and_say_so(store: FolderCache) -> None:
    store.root.mkdir(parents=True)
    make, log = Maker(), Log()
    lock = FileLock(store.root / "name.lock", thread_local=False)
    lock.acquire()
    thread = Thread(target=store.get, args=("name", make, log))
    thread.start()
    while not log:
        thread.join(0.01)
    assert thread.is_alive()
    assert make.calls == 0
    lock.release()
    thread.join()
    assert make.calls == 1
    assert log == ["waiting for another process that prepares the same data"]


def test_what_was_made_while_one_waited_is_not_made_again(store: FolderCache) -> None:
    log = Log()
    unused = Maker()
    waiting = Thread(target=store.get, args=("name", unused, log))

    def make(folder: Path) -> Mapping[str, object]:
        waiting.start()
        while not log:
            waiting.join(0.01)
        return Maker()(folder)

    store.get("name", make, Log())
    waiting.join()
    assert log.count_of("waiting") == 1
    assert unused.calls == 0


def test_a_writer_killed_before_the_last_step_has_written_nothing(store: FolderCache) -> None:
    script = (
        "import sys, time, pathlib\n"
        "from nasgrow.data import store\n"
        "def stop(path):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
        "store._sync = stop\n"  # all is written, the rename is to come
        "make = lambda folder: (folder / 'tokens').write_bytes(b'z') and {}\n"
        "store.FolderCache(pathlib.Path(sys.argv[1])).get('name', make, print)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(store.root)], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    assert contents(store) == {"name.partial"}
    assert (store.root / "name.partial" / META).exists()
    assert store.find("name") is None
    assert store.get("name", Maker(), Log()).info == {"answer": 42}
    assert contents(store) == {"name"}


def test_entries_are_the_whole_ones_the_newest_first(store: FolderCache) -> None:
    assert list(store.entries()) == []
    for age, name in enumerate(("new", "old", "broken", "older")):
        folder = store.get(name, Maker(), Log()).folder
        os.utime(folder / META, (1e9 - age, 1e9 - age))
    (store.root / "broken" / "tokens").unlink()
    assert [entry.folder.name for entry in store.entries()] == ["new", "old", "older"]


def test_the_fingerprint_is_of_the_whole_description_whatever_its_order() -> None:
    description = {"a": 1, "b": {"c": [1, 2], "d": None}}
    name = fingerprint(description)
    assert len(name) == 16
    assert int(name, 16) >= 0
    assert fingerprint(dict(reversed(description.items()))) == name
    others: list[dict[str, object]] = [
        {"a": 1},
        {**description, "a": 2},
        {"a": 1, "b": {"c": [2, 1], "d": None}},
    ]
    assert len({name, *map(fingerprint, others)}) == 4
    assert json.loads(json.dumps(description)) == description


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NASGROW_CACHE", "~/elsewhere")
    assert default_cache() == Path.home() / "elsewhere"
    monkeypatch.setenv("NASGROW_CACHE", "")
    assert default_cache() == Path.home() / ".cache" / "nasgrow"
    monkeypatch.delenv("NASGROW_CACHE")
    assert default_cache() == Path.home() / ".cache" / "nasgrow"


def test_without_a_home_folder_the_cache_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "NASGROW_CACHE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"^NASGROW_CACHE: there is no home folder for '~/\.cache/nasgrow': "):
        default_cache()
    monkeypatch.setenv("NASGROW_CACHE", "/somewhere")
    assert default_cache() == Path("/somewhere")
    with pytest.raises(UserError, match=r"^data\.tokens\.path: ~/own\.json: cannot be read: no such file"):
        open_saved(SavedTokens(kind="file", path="~/own.json"))
    with pytest.raises(UserError, match=r"^data\.tokens\.path: /dev/zero: is not a regular file$"):
        open_saved(SavedTokens(kind="file", path="/dev/zero"))
