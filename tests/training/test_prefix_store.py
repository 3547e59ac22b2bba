"""The store of states: what it keeps, what it gives up first, what a dead process may leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nasgrow.training.prefixes import CachedState, StateStore, store


def key_of(number: int) -> str:
    return f"{number:02x}" * 32


def put(where: StateStore, number: int, size: int = 1000, **about: Any) -> str:
    """Store a state of ``size`` bytes, and a little for what is said of it."""

    def write(folder: Path) -> None:
        (folder / "state").write_bytes(b"x" * size)

    key = key_of(number)
    lock = where.try_lock(key)
    assert lock is not None
    where.put(key, write, {"charged": 100, "before": [], **about})
    lock.release()
    return key


def test_the_latest_of_a_runs_states_is_found(tmp_path: Path) -> None:
    where = StateStore(tmp_path, 1e9)
    keys = [key_of(number) for number in range(9)]
    assert where.latest(keys) is None
    for number in (2, 5):
        put(where, number)
    assert where.latest(keys) == 5
    assert where.latest(keys[:5]) == 2
    assert sorted(where) == [keys[2], keys[5]]


def test_uses_are_counted(tmp_path: Path) -> None:
    where = StateStore(tmp_path, 1e9)
    key = put(where, 1)
    for _ in range(3):
        assert where.take(key, pytest.fail) == where.path(key)
    (entry,) = where.entries()
    assert entry.uses == 3
    assert entry.size == where.size() > 1000


def test_a_state_that_was_evicted_just_now_is_not_there_and_no_warning(tmp_path: Path) -> None:
    where = StateStore(tmp_path, 1e9)
    key = put(where, 1)
    where.drop(key)
    assert where.take(key, pytest.fail) is None
    assert not list(where)


def entry(
    key: str, charged: int = 100, size: int = 10, uses: int = 0, used: float = 0.0, **rest: Any
) -> CachedState:
    return CachedState(key, size, uses, used, {"charged": charged, "before": [], **rest})


def test_the_least_valuable_go_first() -> None:
    """One at a time; ``plain`` is the measure."""
    plain = entry("plain")
    for better in (
        entry("dear", charged=200),
        entry("small", size=5),
        entry("useful", uses=1),
        entry("fresh", used=900.0),
    ):
        size = plain.size + better.size
        for entries in ([plain, better], [better, plain]):
            assert store.evict(entries, size, now=1000.0) == []
            assert store.evict(entries, size - 1, now=1000.0) == ["plain"]
            assert store.evict(entries, 0, now=1000.0) == ["plain", better.key]


def test_a_state_spares_what_lies_between_it_and_the_one_before(tmp_path: Path) -> None:
    """Once that one is gone, it spares more."""
    a = entry("a", charged=50)
    b = entry("b", charged=90, before=[("a", 50)])
    c = entry("c", charged=60)
    assert store.evict([a, b, c], 20, now=0.0) == ["b"]
    d = entry("d", charged=40)
    e = entry("e", charged=85, before=[("d", 40)])
    f = entry("f", charged=70)
    assert store.evict([d, e, f], 20, now=0.0) == ["d"]
    assert store.evict([d, e, f], 10, now=0.0) == ["d", "f"]


def test_the_store_keeps_to_its_limit(tmp_path: Path) -> None:
    where = StateStore(tmp_path, 10_000)
    for number in range(30):
        put(where, number, charged=100 + number)
        assert where.size() <= 10_000 * (1 + store.UNSEEN) + 2_000
    left = {int(entry.key[:2], 16) for entry in where.entries()}
    assert 3 < len(left) < 10
    assert min(left) >= 20, "those that spare most are left"
    assert where.prune(2_500) > 0
    assert where.size() <= 2_500


def test_a_state_that_another_process_puts_meanwhile_is_not_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = StateStore(tmp_path, 1e9)
    put(where, 1)
    found = list(where.entries())

    def entries(self: StateStore) -> list[CachedState]:
        put(self, 2)
        return found

    monkeypatch.setattr(StateStore, "entries", entries)
    assert where.prune(1e9) == 0
    assert where.holds(key_of(2))


def test_a_state_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    where = StateStore(tmp_path, 1e9)

    def fails(folder: Path) -> None:
        (folder / "state").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        where.put(key_of(1), fails, {})
    assert not where.holds(key_of(1))
    assert not list((tmp_path / ".new").iterdir())


def test_what_dead_processes_left_is_swept_and_what_the_living_write_is_not(tmp_path: Path) -> None:
    where = StateStore(tmp_path, 1e9)
    put(where, 1)
    dead, living = tmp_path / ".new" / key_of(2), tmp_path / ".new" / key_of(3)
    removed = tmp_path / ".old" / f"{key_of(4)}.99"
    for folder in (dead, living, removed):
        folder.mkdir(parents=True)
        (folder / "state").write_bytes(b"half")
    lock = where.try_lock(key_of(3))
    assert lock is not None
    StateStore(tmp_path, 1e9).sweep()
    lock.release()
    assert [folder.exists() for folder in (dead, living, removed)] == [False, True, False]
    assert list(where) == [key_of(1)]
    put(where, 3)
    assert where.fault(key_of(3)) is None, "half a state is not mixed with a whole one"
    assert (where.path(key_of(3)) / "state").read_bytes() == b"x" * 1000


def test_one_process_at_a_time_has_the_lock_of_a_key(tmp_path: Path) -> None:
    first, second = StateStore(tmp_path, 1e9), StateStore(tmp_path, 1e9)
    lock = first.try_lock(key_of(1))
    assert lock is not None
    assert second.try_lock(key_of(1)) is None
    lock.release()
    again = second.try_lock(key_of(1))
    assert again is not None
    again.release()
