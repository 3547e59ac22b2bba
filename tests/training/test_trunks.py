"""Trunks: what runs have in common is trained once, and every result is that of the run alone, to the bit."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nasgrow.config import LearningRate, TrainingConfig
from nasgrow.data import Corpus
from nasgrow.flops import step_flops
from nasgrow.training import loop, step
from nasgrow.training.loop import Interrupted, Stopped, train
from nasgrow.training.machine import numerics
from nasgrow.training.records import CHECKPOINTS, METRICS, Result, read_metrics
from nasgrow.training.run import Run
from nasgrow.training.trunks import Store, Trunks, follow, following, forks
from tests.training import runs
from tests.training.runs import SCHEDULE
from tests.training.test_loop import timeless

CPU = torch.device("cpu")
TIMES = tuple(round(0.1 * index, 1) for index in range(1, 9))
BUDGET = 6e7
START: dict[str, Any] = SCHEDULE["start"]
FIRST, SECOND = SCHEDULE["events"]
WIDER: dict[str, Any] = {"at": 0.8, "grow": [{"expand": "mlp", "to": 40}]}


def make_run(folder: Path, **changes: Any) -> tuple[Run, Corpus]:
    """A run whose steps are small beside the distance of its forks."""
    return runs.make_run(folder, **{"budget": {"flops": BUDGET}, **changes})


def schedule(*events: dict[str, Any]) -> dict[str, Any]:
    return {"start": START, "events": list(events)}


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The FLOPs of every step that is really done."""
    flops: list[int] = []

    def backward(model: Any, tokens_bs: Any, micro: int, real: Callable[..., Any] = step.backward) -> Any:
        flops.append(step_flops(model.shape, model.variant, tokens_bs.shape[0], tokens_bs.shape[1] - 1))
        return real(model, tokens_bs, micro)

    monkeypatch.setattr(loop, "backward", backward)
    return flops


def trunks_in(
    folder: Path, times: tuple[float, ...] = TIMES, limit: float = 1e9, share: float = math.inf
) -> Trunks:
    """By default runs of a moment are worth storing, whatever that takes."""
    return Trunks(Store(folder / "trunks", limit), times, share)


def run_in(
    folder: Path,
    run: Run,
    corpus: Corpus,
    trunks: Trunks | None = None,
    warn: Callable[[str], None] = pytest.fail,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> Result:
    folder.mkdir(exist_ok=True)
    with following(trunks, run, folder, CPU, warn, stop) as trunk:
        return train(run, corpus, folder, device=CPU, warn=warn, stop=stop, trunk=trunk, **options)


def outcome(folder: Path, result: Result) -> tuple[Any, ...]:
    """All that a run leaves but for what a clock measured and what was spent: weights, moments, records."""
    stem = folder / CHECKPOINTS / f"step-{result.steps}"
    tensors = {name: value.tolist() for name, value in load_file(stem.with_suffix(".safetensors")).items()}
    rest = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))["optimizers"]
    return replace(result, seconds=0, executed=0), tensors, rest, timeless(list(read_metrics(folder)))


def charged_at(run: Run, at: float) -> int:
    """FLOPs charged at the first step that begins with a fraction of the budget spent."""
    return next(fork.charged for fork in forks(run, (at,), {}) if fork.kept)


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
    """Train a run alone, and after another that has a trunk in common with it; returns the store's folder."""
    first, second, shared = CASES[case]
    feeder, corpus = make_run(folder, schedule=first, training=training)
    run, _ = make_run(folder, schedule=second, training=training)
    alone = run_in(folder / "alone", run, corpus)
    trunks = trunks_in(folder)
    run_in(folder / "feeder", feeder, corpus, trunks)
    result = run_in(folder / "run", run, corpus, trunks)
    assert result.charged == alone.charged == alone.executed
    assert result.executed == result.charged - charged_at(run, shared)
    assert outcome(folder / "run", result) == outcome(folder / "alone", alone)
    return trunks.store.root


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_reused_a_trunk_is_the_run_alone_to_the_bit(tmp_path: Path, case: str) -> None:
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
    trunks = trunks_in(tmp_path)
    run_in(tmp_path / "feeder", feeder, corpus, trunks)
    assert all(record["executed"] == record["charged"] for record in read_metrics(tmp_path / "feeder"))
    result = run_in(tmp_path / "run", run, corpus, trunks)
    reused = charged_at(run, 0.3)
    for record in read_metrics(tmp_path / "run"):
        assert record["executed"] == max(0, record["charged"] - reused)
        assert record["seconds"] <= result.seconds


def test_evaluations_on_the_way_are_told(tmp_path: Path) -> None:
    feeder, corpus = make_run(tmp_path, schedule=schedule(FIRST, SECOND))
    run, _ = make_run(tmp_path, schedule=schedule(FIRST))
    told: list[list[tuple[float, float]]] = [[], []]
    run_in(tmp_path / "alone", run, corpus, evaluated=lambda *look: told[0].append(look))
    trunks = trunks_in(tmp_path)
    run_in(tmp_path / "feeder", feeder, corpus, trunks)
    run_in(tmp_path / "run", run, corpus, trunks, evaluated=lambda *look: told[1].append(look))
    assert len(told[0]) == 5
    assert told[0] == told[1]


def stop_at(fraction: float) -> Callable[[float, float], None]:
    def judge(aligned: float, validation: float) -> None:
        if aligned == fraction:
            raise Stopped

    return judge


@pytest.mark.parametrize("after", ["training", "finding"])
def test_a_run_that_is_given_up_leaves_no_checkpoint_and_goes_on_from_the_store(
    tmp_path: Path, after: str, done: list[int]
) -> None:
    """Given up at an evaluation that it came to itself, or that stood in another's records."""
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    trunks = trunks_in(tmp_path, times=(0.3, 0.5) if after == "finding" else ())
    if after == "finding":
        other, _ = make_run(tmp_path, schedule=schedule(FIRST, WIDER))
        run_in(tmp_path / "other", other, corpus, trunks)
    done.clear()
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        run_in(folder, run, corpus, trunks, evaluated=stop_at(0.4))
    assert not (folder / CHECKPOINTS).exists() or after == "finding"
    *_, last = read_metrics(folder)
    assert (last["kind"], last["aligned"]) == ("evaluation", 0.4)
    assert last["executed"] == sum(done) == (0 if after == "finding" else last["charged"])
    result = run_in(folder, run, corpus, trunks)
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
    trunks, folder = trunks_in(tmp_path), tmp_path / "run"
    run_in(tmp_path / "early", early, corpus, trunks)  # leaves states up to 0.3
    done.clear()
    for share in (0.35, 0.45):  # it reuses, trains a little, and dies: twice
        with pytest.raises(Killed):
            run_in(folder, run, corpus, trunks, watch=dies_at(share))
    before = sum(done)
    run_in(tmp_path / "late", late, corpus, trunks)  # leaves states up to 0.6
    done.clear()
    result = run_in(folder, run, corpus, trunks)
    assert result.executed == before + sum(done)
    assert sum(done) == run.stages[-1].charged(result.steps) - charged_at(run, 0.6)
    assert outcome(folder, result) == outcome(tmp_path / "alone", alone)


def test_a_stopped_run_goes_on_to_the_same_bits_after_a_reuse(tmp_path: Path) -> None:
    feeder, corpus = make_run(tmp_path, schedule=schedule(FIRST, WIDER))
    run, _ = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    trunks, folder = trunks_in(tmp_path), tmp_path / "run"
    run_in(tmp_path / "feeder", feeder, corpus, trunks)
    asked = iter([False] * 3)
    with pytest.raises(Interrupted):
        run_in(folder, run, corpus, trunks, stop=lambda: next(asked, True))
    result = run_in(folder, run, corpus, trunks)
    assert result.executed == result.charged - charged_at(run, 0.6)
    assert outcome(folder, result) == outcome(tmp_path / "alone", alone)


def test_states_are_kept_at_the_times_given_and_nowhere_else(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    trunks = trunks_in(tmp_path, times=(0.3, 0.5))
    run_in(tmp_path / "run", run, corpus, trunks)
    kept = sorted(entry.about["charged"] for entry in trunks.store.entries())
    assert kept == [charged_at(run, 0.3), charged_at(run, 0.5)]
    assert kept[0] == run.stages[1].spent, "right before the event"
    assert trunks.spared(run, CPU) == kept[1]


def test_what_takes_too_long_to_write_is_not_stored(tmp_path: Path) -> None:
    """The first state is, to measure it; then those that enough training lies before."""
    trunks = trunks_in(tmp_path, share=0.01)
    assert trunks.worth(0.0)
    trunks.wrote(1.0)
    assert trunks.worth(0.0, flops=10), "the pace is not known yet"
    trunks.saw(seconds=20.0, flops=10)
    assert [trunks.worth(seconds, flops) for seconds, flops in [(99, 0), (100, 0), (0, 49), (0, 50)]] == [
        False,
        True,
        False,
        True,
    ]
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    result = run_in(tmp_path / "run", run, corpus, trunks)
    assert not list(trunks.store)
    assert outcome(tmp_path / "run", result) == outcome(tmp_path / "alone", alone)


# What determines a state, and what does not.


def keys(run: Run, environment: dict[str, Any] | None = None) -> dict[int, str]:
    """The keys of a run's states by percent of the budget."""
    kept = [fork.key for fork in forks(run, TIMES, environment or numerics(CPU)) if fork.kept]
    return dict(zip([round(100 * at) for at in TIMES], kept, strict=True))


FROM_THE_START: dict[str, Any] = {
    "training.context": {"training": {"context": 32}},
    "training.batch_tokens": {"training": {"batch_tokens": 128}},
    "training.micro_tokens": {"training": {"micro_tokens": 32}},
    "training.optimizer": {"training": {"optimizer": "muon"}},
    "training.weight_decay": {"training": {"weight_decay": 0.2}},
    "training.beta1": {"training": {"beta1": 0.8}},
    "training.beta2": {"training": {"beta2": 0.9}},
    "training.clip": {"training": {"clip": None}},
    "training.evaluations": {"training": {"evaluations": 10}},
    "training.evaluation_tokens": {"training": {"evaluation_tokens": 128}},
    "learning_rate.peak": {"training": {"learning_rate": {"peak": 6.000001e-3}}},
    "learning_rate.warmup": {"training": {"learning_rate": {"warmup": 0.2}}},
    "learning_rate.width_power": {"training": {"learning_rate": {"width_power": 0.5}}},
    "law cosine": {"training": {"learning_rate": {"law": "cosine"}}},
    "seed": {"seed": 1},
    "budget": {"budget": {"flops": 6.01e7}},
    "variant": {"variant": {"norm": "after"}},
    "start": {"schedule": {"start": {**START, "mlp": 20}, "events": [FIRST, SECOND]}},
}
FROM_THE_FIRST_EVENT: dict[str, Any] = {
    "training.moments": {"training": {"moments": "reset"}},
    "training.operator": {"training": {"operator": {"kind": "preserve", "init": "matched"}}},
    "learning_rate.rewarm": {"training": {"learning_rate": {"rewarm": 0.2}}},
    "learning_rate.rewarm_from": {"training": {"learning_rate": {"rewarm_from": 0.5}}},
    "learning_rate.event_factor": {"training": {"learning_rate": {"event_factor": 0.5}}},
    "what the event grows": {
        "schedule": schedule({**FIRST, "grow": [{"expand": "hidden", "to": 16}]}, SECOND)
    },
    "the event's own operator": {"schedule": schedule({**FIRST, "operator": "net2net"}, SECOND)},
    "no such event": {"schedule": schedule(SECOND)},
}
FROM_THE_SECOND_EVENT: dict[str, Any] = {
    "the second event's own operator": {"schedule": schedule(FIRST, {**SECOND, "operator": "net2net"})},
    "the operator of all but the first": {
        "schedule": schedule({**FIRST, "operator": "preserve"}, SECOND),
        "training": {"operator": "net2net"},
    },
    "where a layer is put, at the same cost": {
        "schedule": schedule(FIRST, {**SECOND, "grow": [{"expand": "layers", "at": [0]}, SECOND["grow"][1]]})
    },
}
FROM_THE_DECAY: dict[str, Any] = {
    "learning_rate.final": {"training": {"learning_rate": {"final": 0.1}}},
    "learning_rate.decay": {"training": {"learning_rate": {"decay": 0.2}}},
    "learning_rate.law": {"training": {"learning_rate": {"law": "constant"}}},
}
NEVER: dict[str, Any] = {
    "training.final_tokens": {"training": {"final_tokens": 256}},
    "an operator that never acts": {
        "schedule": schedule({**FIRST, "operator": "preserve"}, {**SECOND, "operator": "preserve"}),
        "training": {"operator": "net2net"},
    },
    "an event later on": {"schedule": schedule(FIRST, SECOND, {**WIDER, "at": 0.85})},
    "the time of an event that happens at the same step": {
        "schedule": schedule({**FIRST, "at": 0.2999}, SECOND)
    },
}


def described(**changes: Any) -> Run:
    """A run that nobody trains, on data that nobody reads."""
    config = runs.make_config("text", **{"budget": {"flops": BUDGET}, **changes})
    return Run.resolve(config, vocab=256, fingerprint="text")


@pytest.mark.parametrize(
    ("name", "change", "first"),
    [
        *((name, change, 10) for name, change in FROM_THE_START.items()),
        *((name, change, 40) for name, change in FROM_THE_FIRST_EVENT.items()),
        *((name, change, 70) for name, change in FROM_THE_SECOND_EVENT.items()),
        *((name, change, 80) for name, change in FROM_THE_DECAY.items()),
        *((name, change, 101) for name, change in NEVER.items()),
    ],
)
def test_a_change_prevents_reuse_from_where_it_acts_on(name: str, change: dict[str, Any], first: int) -> None:
    """Events are at 0.3 and 0.6; the decay begins at 0.7."""
    ours, theirs = keys(described()), keys(described(**change))
    for percent in ours:
        if percent != 70 or name not in FROM_THE_DECAY:  # a step may begin before the decay and end in it
            assert (ours[percent] == theirs[percent]) == (percent < first), (name, percent)


def test_every_training_setting_is_among_these() -> None:
    tried = [*FROM_THE_START, *FROM_THE_FIRST_EVENT, *FROM_THE_DECAY, *NEVER]
    named = {name.split(".")[1] for name in tried if "." in name}
    assert named | {"learning_rate"} == {*TrainingConfig.model_fields, *LearningRate.model_fields}


def test_other_data_another_vocabulary_or_another_environment_prevent_reuse() -> None:
    run = described()
    ours, config = keys(run), run.config
    others = [
        keys(replace(run, fingerprint="other")),
        keys(Run.resolve(config, vocab=300, fingerprint=run.fingerprint)),
    ]
    environment = numerics(CPU)
    assert {"nasgrow", "versions", "device", "threads", "dtype", "instructions", "system"} < set(environment)
    others += [keys(run, {**environment, name: "other"}) for name in environment]
    for theirs in others:
        assert not set(ours.values()) & set(theirs.values())


def test_a_key_is_of_the_state_before_an_event() -> None:
    """Growing now and waiting share it; after the event they part."""
    now, wait = (keys(described(schedule=schedule(*events))) for events in ([FIRST], []))
    assert [percent for percent in now if now[percent] == wait[percent]] == [10, 20, 30]


# Several processes.

PROGRAM = """
import math, os, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from nasgrow.data import prepare
from nasgrow.training import loop
from nasgrow.training.loop import train
from nasgrow.training.run import Run
from nasgrow.training.trunks import Store, Trunks, following
from tests.training.runs import make_config
from tests.training.test_trunks import BUDGET, FIRST, SECOND, TIMES, schedule
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
trunks = Trunks(Store(folder / "trunks", 1e9), TIMES, math.inf)
with following(trunks, run, folder / name, cpu, print, lambda: False) as trunk:
    print(train(run, corpus, folder / name, device=cpu, trunk=trunk).executed)
"""


def start(folder: Path, name: str, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), name, str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


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
    executed = [int(process.communicate(timeout=120)[0]) for process in processes]
    lengths = [run.stages[-1].charged(run.stages[-1].end) for run in (one, two)]
    assert sum(executed) == sum(lengths) - charged_at(two, 0.6)
    assert timeless(list(read_metrics(tmp_path / "two"))) == timeless(list(read_metrics(tmp_path / "alone")))
    assert alone.charged == lengths[1]


def test_when_the_process_that_trains_a_trunk_is_killed_the_one_that_waits_goes_on(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    (tmp_path / "go").touch()
    holder = start(tmp_path, "one", 60.0)
    wait_for(tmp_path / "one.training")

    def kill() -> bool:
        """Asked while the run waits, and after every step."""
        if holder.poll() is None:
            os.kill(holder.pid, signal.SIGKILL)
            holder.wait()
        return False

    result = run_in(tmp_path / "run", run, corpus, trunks_in(tmp_path), stop=kill)
    holder.communicate()
    assert holder.returncode == -signal.SIGKILL
    assert result.executed == result.charged
    assert outcome(tmp_path / "run", result) == outcome(tmp_path / "alone", alone)


def test_who_waits_for_another_can_be_stopped(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    trunks = trunks_in(tmp_path)
    lock = trunks.store.try_lock(keys(run)[10])
    assert lock is not None
    with pytest.raises(Interrupted):
        run_in(tmp_path / "run", run, corpus, trunks, stop=lambda: True)
    lock.release()
    assert not (tmp_path / "run" / METRICS).exists()
    assert run_in(tmp_path / "run", run, corpus, trunks).status == "finished"


def test_who_waits_for_a_sleeper_trains_that_part_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "PATIENCE", 0.2)
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    trunks = trunks_in(tmp_path)
    asleep = keys(run)[10]
    lock = trunks.store.try_lock(asleep)
    assert lock is not None
    result = run_in(tmp_path / "run", run, corpus, trunks)
    lock.release()
    assert result.executed == result.charged
    assert outcome(tmp_path / "run", result) == outcome(tmp_path / "alone", alone)
    stored = {entry.key for entry in trunks.store.entries()}
    assert stored, "the states beyond are stored"
    assert asleep not in stored


def test_a_holder_that_shows_life_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PATIENCE", 0.5)
    run, corpus = make_run(tmp_path)
    trunks = trunks_in(tmp_path)
    lock = trunks.store.try_lock(keys(run)[10])
    assert lock is not None
    began = time.monotonic()

    def stop() -> bool:
        """Asked at every look at the lock, many times in the holder's patience."""
        trunks.store.beat(keys(run)[10])
        return time.monotonic() - began > 1.5

    with pytest.raises(Interrupted):
        run_in(tmp_path / "run", run, corpus, trunks, stop=stop)
    lock.release()
    assert not (tmp_path / "run" / METRICS).exists(), "it did not train meanwhile"


# A store that fails.


def test_a_damaged_state_is_named_dropped_and_trained_again(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path, schedule=schedule())
    trunks = trunks_in(tmp_path, times=(0.3, 0.6))
    first = run_in(tmp_path / "first", run, corpus, trunks)
    last = max(trunks.store.entries(), key=lambda entry: entry.about["step"])
    folder = trunks.store.path(last.key)
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
            assert trunks.store.fault(last.key) is not None, (path.name, damaged)
        path.unlink()
        assert trunks.store.fault(last.key) == f"{path.name} is missing"
        path.write_bytes(content)
        assert trunks.store.fault(last.key) is None
    sums = folder / "SHA256SUMS"
    lines = sums.read_text(encoding="utf-8").splitlines(keepends=True)
    for line in lines:
        sums.write_text("".join(other for other in lines if other != line), encoding="utf-8")
        assert trunks.store.fault(last.key) == f"{line.split()[1]} is damaged"
    sums.write_text("".join(lines), encoding="utf-8")
    (folder / METRICS).write_bytes((folder / METRICS).read_bytes().replace(b"0.", b"1.", 1))
    warnings: list[str] = []
    again = run_in(tmp_path / "again", run, corpus, trunks, warn=warnings.append)
    assert warnings == [f"{folder}: passed over and dropped: {METRICS} is damaged"]
    assert again.executed == again.charged - charged_at(run, 0.3)
    assert outcome(tmp_path / "again", again) == outcome(tmp_path / "first", first)
    assert trunks.store.fault(last.key) is None, "it was stored again"


def test_a_store_that_cannot_be_used_is_a_warning_and_no_more(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    alone = run_in(tmp_path / "alone", run, corpus)
    (tmp_path / "trunks").write_text("not a folder")
    warnings: list[str] = []
    result = run_in(tmp_path / "run", run, corpus, trunks_in(tmp_path), warn=warnings.append)
    (warning,) = warnings
    assert warning.startswith(f"{tmp_path / 'trunks'}: cannot be used")
    assert outcome(tmp_path / "run", result) == outcome(tmp_path / "alone", alone)
