"""What runs have in common is trained once, and every result is that of the run alone, to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nasgrow.flops import step_flops
from nasgrow.training import loop, step
from nasgrow.training.loop import InterruptedRunError, StopTrainingError
from nasgrow.training.machine import numerics
from nasgrow.training.prefixes import forks
from nasgrow.training.records import CHECKPOINTS, METRICS, read_metrics
from tests.permissions import modes, with_umask
from tests.training.prefixes import (
    FIRST,
    SECOND,
    WIDER,
    cache_in,
    charged_at,
    make_run,
    outcome,
    run_in,
    schedule,
)
from tests.training.runs import CPU


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The FLOPs of every step that is really done."""
    flops: list[int] = []

    def backward(model: Any, tokens_bs: Any, micro: int, real: Callable[..., Any] = step.backward) -> Any:
        flops.append(step_flops(model.shape, model.variant, tokens_bs.shape[0]))
        return real(model, tokens_bs, micro)

    monkeypatch.setattr(loop, "backward", backward)
    return flops


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "no event": (schedule(FIRST), schedule(), 0.3),
    "an event at the last common state": (schedule(), schedule(FIRST), 0.3),
    "one event": (schedule(FIRST), schedule(FIRST, SECOND), 0.6),
    "two events": (schedule(FIRST, SECOND, WIDER), schedule(FIRST, SECOND), 0.8),
    "an operator for each event": (
        schedule({**FIRST, "operator": "masked"}, {**SECOND, "operator": "net2net"}),
        schedule({**FIRST, "operator": "masked"}, {**SECOND, "operator": "preserve + stack"}),
        0.6,
    ),
}


def check_exact(folder: Path, case: str, **training: Any) -> Path:
    """Train a run alone, and after another that shares a prefix with it; return the store's folder."""
    first, second, shared = CASES[case]
    feeder, corpus = make_run(folder, schedule=first, training=training)
    run, _ = make_run(folder, schedule=second, training=training)
    alone = run_in(folder / "alone", run, corpus)
    cache = cache_in(folder)
    run_in(folder / "feeder", feeder, corpus, cache)
    result = run_in(folder / "run", run, corpus, cache)
    assert result.charged == alone.charged == alone.executed
    assert result.executed == result.charged - charged_at(run, shared)
    assert outcome(folder / "run", result) == outcome(folder / "alone", alone)
    return cache.store.root


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_reused_a_prefix_is_the_run_alone_to_the_bit(tmp_path: Path, case: str) -> None:
    check_exact(tmp_path, case)


@pytest.mark.parametrize(
    ("optimizer", "moments"), [("adamw", "carry"), ("adamw", "reset"), ("muon", "fresh-new")]
)
def test_so_it_is_under_every_optimizer_and_moment_policy(
    tmp_path: Path, optimizer: str, moments: str
) -> None:
    check_exact(tmp_path, "two events", optimizer=optimizer, moments=moments)


def test_so_it_is_while_masks_open(tmp_path: Path) -> None:
    """Masks of the first event are still opening where the runs part, and where the second event comes."""
    operator = {"kind": "masked", "opening": 0.5}
    store = check_exact(tmp_path, "one event", operator=operator)
    run, _ = make_run(tmp_path, schedule=CASES["one event"][1], training={"operator": operator})
    parting = next(fork.step for fork in forks(run, (0.6,), {}) if fork.kept)
    states = [json.loads(path.read_text(encoding="utf-8")) for path in store.glob("??/*/state.json")]
    masks = [state["masks"] for state in states if state["state"]["step"] == parting]
    assert masks
    assert all(masks)


def test_so_it_is_where_an_event_costs_something(tmp_path: Path) -> None:
    check_exact(tmp_path, "two events", operator="gradmax")
    events = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "event"]
    assert [event["flops"] > 0 for event in events] == [False, True], "the second widens the MLP"


def test_so_it_is_while_new_entries_are_young(tmp_path: Path) -> None:
    store = check_exact(tmp_path, "two events", beta2=0.999)
    states = [json.loads(path.read_text(encoding="utf-8")) for path in store.glob("??/*/state.json")]
    late = max(states, key=lambda state: state["state"]["step"])
    assert any(place.endswith("/ages") for place in late["optimizers"])


def test_records_say_what_was_executed(tmp_path: Path) -> None:
    feeder, corpus = make_run(tmp_path, schedule=schedule(FIRST))
    run, _ = make_run(tmp_path, schedule=schedule())
    cache = cache_in(tmp_path)
    run_in(tmp_path / "feeder", feeder, corpus, cache)
    assert all(record["executed"] == record["charged"] for record in read_metrics(tmp_path / "feeder"))
    result = run_in(tmp_path / "run", run, corpus, cache)
    reused = charged_at(run, 0.3)
    for record in read_metrics(tmp_path / "run"):
        assert record["executed"] == max(0, record["charged"] - reused)
        assert record["seconds"] <= result.seconds


def test_evaluations_on_the_way_are_told(tmp_path: Path) -> None:
    feeder, corpus = make_run(tmp_path, schedule=schedule(FIRST, SECOND))
    run, _ = make_run(tmp_path, schedule=schedule(FIRST))
    told: list[list[tuple[float, float]]] = [[], []]
    run_in(tmp_path / "alone", run, corpus, evaluated=lambda *look: told[0].append(look))
    cache = cache_in(tmp_path)
    run_in(tmp_path / "feeder", feeder, corpus, cache)
    run_in(tmp_path / "run", run, corpus, cache, evaluated=lambda *look: told[1].append(look))
    assert len(told[0]) == 5
    assert told[0] == told[1]


def stop_at(fraction: float) -> Callable[[float, float], None]:
    def judge(aligned: float, validation: float) -> None:
        if aligned == fraction:
            raise StopTrainingError

    return judge


@pytest.mark.parametrize("after", ["training", "finding"])
def test_a_run_that_is_given_up_leaves_no_checkpoint_and_goes_on_from_the_store(
    tmp_path: Path, after: str, done: list[int]
) -> None:
    """Given up at an evaluation that it came to itself, or that stood in another's records."""
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    cache = cache_in(tmp_path, times=(0.3, 0.5) if after == "finding" else ())
    if after == "finding":
        other, _ = make_run(tmp_path, schedule=schedule(FIRST, WIDER))
        run_in(tmp_path / "other", other, corpus, cache)
    done.clear()
    folder = tmp_path / "run"
    with pytest.raises(StopTrainingError):
        run_in(folder, run, corpus, cache, evaluated=stop_at(0.4))
    assert not (folder / CHECKPOINTS).exists() or after == "finding"
    *_, last = read_metrics(folder)
    assert (last["kind"], last["aligned"]) == ("evaluation", 0.4)
    assert last["executed"] == sum(done) == (0 if after == "finding" else last["charged"])
    result = run_in(folder, run, corpus, cache)
    assert result.executed == sum(done)
    assert sum(done) == alone.charged - (charged_at(run, 0.5) if after == "finding" else 0)
    assert outcome(folder, result) == outcome(tmp_path / "alone", alone)


class Killed(Exception):  # noqa: N818
    """Stands for a kill: nothing is saved when it passes."""


def dies_at(fraction: float) -> Callable[[Any], None]:
    def watch(progress: Any) -> None:
        if progress.fraction > fraction:
            raise Killed

    return watch


def test_what_was_executed_is_counted_over_reuse_deaths_and_reuse_again(
    tmp_path: Path, done: list[int]
) -> None:
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    early, _ = make_run(tmp_path, schedule=schedule())
    late, _ = make_run(tmp_path, schedule=schedule(FIRST, {**SECOND, "at": 0.7}))
    cache, folder = cache_in(tmp_path), tmp_path / "run"
    run_in(tmp_path / "early", early, corpus, cache)  # leaves states up to 0.3
    done.clear()
    for share in (0.35, 0.45):  # it reuses, trains a little, and dies: twice
        with pytest.raises(Killed):
            run_in(folder, run, corpus, cache, watch=dies_at(share))
    before = sum(done)
    run_in(tmp_path / "late", late, corpus, cache)  # leaves states up to 0.6
    done.clear()
    result = run_in(folder, run, corpus, cache)
    assert result.executed == before + sum(done)
    assert sum(done) == run.stages[-1].charged(result.steps) - charged_at(run, 0.6)
    assert outcome(folder, result) == outcome(tmp_path / "alone", alone)


def test_a_stopped_run_goes_on_to_the_same_bits_after_a_reuse(tmp_path: Path) -> None:
    feeder, corpus = make_run(tmp_path, schedule=schedule(FIRST, WIDER))
    run, _ = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    cache, folder = cache_in(tmp_path), tmp_path / "run"
    run_in(tmp_path / "feeder", feeder, corpus, cache)
    asked = iter([False] * 3)
    with pytest.raises(InterruptedRunError):
        run_in(folder, run, corpus, cache, stop=lambda: next(asked, True))
    result = run_in(folder, run, corpus, cache)
    assert result.executed == result.charged - charged_at(run, 0.6)
    assert outcome(folder, result) == outcome(tmp_path / "alone", alone)


def test_states_are_kept_at_the_times_given_and_nowhere_else(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    cache = cache_in(tmp_path, times=(0.3, 0.5))
    run_in(tmp_path / "run", run, corpus, cache)
    kept = sorted(entry.about["charged"] for entry in cache.store.entries())
    assert kept == [charged_at(run, 0.3), charged_at(run, 0.5)]
    assert kept[0] == run.stages[1].spent, "right before the event"
    places = forks(run, cache.times, numerics(CPU))
    latest = cache.store.latest([fork.key for fork in places])
    assert latest is not None
    assert places[latest].charged == kept[1]


def test_states_are_for_whom_the_umask_says(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    with with_umask(0o027):
        run_in(tmp_path / "run", run, corpus, cache_in(tmp_path))
    found = {**modes(tmp_path / "run"), **modes(tmp_path / "prefixes")}
    assert any(name.endswith("state.safetensors") for name in found)
    assert set(found.values()) == {"640"}


def test_what_takes_too_long_to_write_is_not_stored(tmp_path: Path) -> None:
    """The first state is, to measure it; then those that enough training lies before."""
    cache = cache_in(tmp_path, share=0.01)
    assert cache.worth(0.0)
    cache.wrote(1.0)
    assert cache.worth(0.0, flops=10), "the pace is not known yet"
    cache.saw(seconds=20.0, flops=10)
    assert [cache.worth(seconds, flops) for seconds, flops in [(99, 0), (100, 0), (0, 49), (0, 50)]] == [
        False,
        True,
        False,
        True,
    ]
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    result = run_in(tmp_path / "run", run, corpus, cache)
    assert not list(cache.store)
    assert outcome(tmp_path / "run", result) == outcome(tmp_path / "alone", alone)


# A store that fails.


def test_a_damaged_state_is_named_dropped_and_trained_again(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path, schedule=schedule())
    cache = cache_in(tmp_path, times=(0.3, 0.6))
    first = run_in(tmp_path / "first", run, corpus, cache)
    last = max(cache.store.entries(), key=lambda entry: entry.about["step"])
    folder = cache.store.path(last.key)
    files = [path for path in folder.iterdir() if path.name != "used"]
    assert {path.name for path in files} == {
        "state.safetensors",
        "state.json",
        METRICS,
        "about.json",
        "SHA256SUMS",
    }
    for path in files:
        content = path.read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        for damaged in (flipped, content[:middle], b"", content + b"x"):
            path.write_bytes(damaged)
            assert cache.store.fault(last.key) is not None, (path.name, damaged)
        path.unlink()
        assert cache.store.fault(last.key) == f"{path.name} is missing"
        path.write_bytes(content)
        assert cache.store.fault(last.key) is None
    sums = folder / "SHA256SUMS"
    lines = sums.read_text(encoding="utf-8").splitlines(keepends=True)
    for line in lines:
        sums.write_text("".join(other for other in lines if other != line), encoding="utf-8")
        assert cache.store.fault(last.key) == f"{line.split()[1]} is damaged"
    sums.write_text("".join(lines), encoding="utf-8")
    (folder / METRICS).write_bytes((folder / METRICS).read_bytes().replace(b"0.", b"1.", 1))
    warnings: list[str] = []
    again = run_in(tmp_path / "again", run, corpus, cache, warn=warnings.append)
    assert warnings == [f"{folder}: passed over and dropped: {METRICS} is damaged"]
    assert again.executed == again.charged - charged_at(run, 0.3)
    assert outcome(tmp_path / "again", again) == outcome(tmp_path / "first", first)
    assert cache.store.fault(last.key) is None, "it was stored again"


def test_a_store_that_cannot_be_used_is_a_warning_and_no_more(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    (tmp_path / "prefixes").write_text("not a folder")
    warnings: list[str] = []
    result = run_in(tmp_path / "run", run, corpus, cache_in(tmp_path), warn=warnings.append)
    (warning,) = warnings
    assert warning.startswith(f"{tmp_path / 'prefixes'}: cannot be used")
    assert outcome(tmp_path / "run", result) == outcome(tmp_path / "alone", alone)
