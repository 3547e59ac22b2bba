"""Several processes and one store: what they have in common is trained once, whoever dies or sleeps."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from nasgrow.training.loop import InterruptedRunError
from nasgrow.training.prefixes import reuse
from nasgrow.training.records import METRICS, read_metrics
from tests.processes import Program
from tests.training.prefixes import (
    FIRST,
    cache_in,
    charged_at,
    keys,
    make_run,
    outcome,
    run_in,
    schedule,
)
from tests.training.runs import timeless

PROGRAM = """
import math, os, sys, time
from pathlib import Path
import torch
from nasgrow.data import prepare
from nasgrow.training import loop
from nasgrow.training.loop import train
from nasgrow.training.run import Run
from nasgrow.training.prefixes import StateStore, PrefixCache, following
from tests.training.runs import make_config
from tests.training.prefixes import BUDGET, FIRST, SECOND, TIMES, schedule
folder, name, events = Path(sys.argv[1]), sys.argv[2], {"one": [FIRST], "two": [FIRST, SECOND]}[sys.argv[2]]
config = make_config(str(folder / "text/*.txt"), budget={"flops": BUDGET}, schedule=schedule(*events))
corpus = prepare(config.data, cache=folder / "cache")
run = Run.resolve(config, vocab=corpus.vocab, fingerprint=corpus.fingerprint)
(folder / f"{name}.ready").touch()
real, cpu = loop.backward, torch.device("cpu")
def slow(*args):
    (folder / f"{name}.training").touch()
    time.sleep(float(sys.argv[3]))
    return real(*args)
loop.backward = slow
while not (folder / "go").exists(): time.sleep(0.001)
(folder / name).mkdir()
cache = PrefixCache(StateStore(folder / "prefixes", 1e9), TIMES, math.inf)
with following(cache, run, folder / name, cpu, print, lambda: False) as prefix:
    print(train(run, corpus, folder / name, device=cpu, prefix=prefix).executed)
"""


def start(folder: Path, name: str, pause: float) -> Program:
    """A process that trains a run."""
    return Program(PROGRAM, [str(folder), name, str(pause)], folder)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_two_processes_train_what_they_have_in_common_once(tmp_path: Path) -> None:
    one, corpus = make_run(tmp_path, schedule=schedule(FIRST))
    two, _ = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", two, corpus)
    processes = [start(tmp_path, name, 0.005) for name in ("one", "two")]
    for name in ("one", "two"):
        wait_for(tmp_path / f"{name}.ready")
    (tmp_path / "go").touch()
    assert [process.wait() for process in processes] == [0, 0]
    executed = [int(process.out) for process in processes]
    lengths = [run.stages[-1].charged(run.stages[-1].end) for run in (one, two)]
    assert sum(executed) == sum(lengths) - charged_at(two, 0.6)
    assert timeless(list(read_metrics(tmp_path / "two"))) == timeless(list(read_metrics(tmp_path / "alone")))
    assert alone.charged == lengths[1]


def test_when_the_process_that_trains_a_prefix_is_killed_the_one_that_waits_goes_on(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    (tmp_path / "go").touch()
    holder = start(tmp_path, "one", 60.0)
    wait_for(tmp_path / "one.training")

    def kill() -> bool:
        """Asked while the run waits, and after every step."""
        if holder.poll() is None:
            holder.kill()
            holder.wait()
        return False

    result = run_in(tmp_path / "run", run, corpus, cache_in(tmp_path), stop=kill)
    assert holder.wait() == -signal.SIGKILL
    assert result.executed == result.charged
    assert outcome(tmp_path / "run", result) == outcome(tmp_path / "alone", alone)


def test_who_waits_for_another_can_be_stopped(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    cache = cache_in(tmp_path)
    lock = cache.store.try_lock(keys(run)[10])
    assert lock is not None
    with pytest.raises(InterruptedRunError):
        run_in(tmp_path / "run", run, corpus, cache, stop=lambda: True)
    lock.release()
    assert not (tmp_path / "run" / METRICS).exists()
    assert run_in(tmp_path / "run", run, corpus, cache).status == "finished"


def test_who_waits_for_a_sleeper_trains_that_part_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "STALE_SECONDS", 0.2)
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    cache = cache_in(tmp_path)
    asleep = keys(run)[10]
    lock = cache.store.try_lock(asleep)
    assert lock is not None
    result = run_in(tmp_path / "run", run, corpus, cache)
    lock.release()
    assert result.executed == result.charged
    assert outcome(tmp_path / "run", result) == outcome(tmp_path / "alone", alone)
    stored = {entry.key for entry in cache.store.entries()}
    assert stored, "the states beyond are stored"
    assert asleep not in stored


def test_a_holder_that_shows_life_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "STALE_SECONDS", 0.5)
    run, corpus = make_run(tmp_path)
    cache = cache_in(tmp_path)
    lock = cache.store.try_lock(keys(run)[10])
    assert lock is not None
    began = time.monotonic()

    def stop() -> bool:
        """Asked at every look at the lock, many times in the holder's patience."""
        cache.store.beat(keys(run)[10])
        return time.monotonic() - began > 1.5

    with pytest.raises(InterruptedRunError):
        run_in(tmp_path / "run", run, corpus, cache, stop=stop)
    lock.release()
    assert not (tmp_path / "run" / METRICS).exists(), "it did not train meanwhile"
