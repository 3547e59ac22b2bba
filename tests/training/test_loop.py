"""The training loop: repeatable to the bit, right to the FLOP, honest about divergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nasgrow import fused
from nasgrow.data import batch
from nasgrow.flops import step_flops
from nasgrow.model import Transformer
from nasgrow.schedule import Stage
from nasgrow.training import checkpoint, loop, step
from nasgrow.training.checkpoint import load
from nasgrow.training.learning_rate import learning_rates
from nasgrow.training.loop import InterruptedRunError, Progress, StopTrainingError
from nasgrow.training.optimizers import build_optimizers
from nasgrow.training.records import (
    CHECKPOINTS,
    METRICS,
    RESULT,
    append_record,
    read_metrics,
    sync_records,
    write_json,
)
from nasgrow.training.run import Run
from nasgrow.training.state import TrainState
from tests.training.runs import SCHEDULE, TRAINING, equal, make_run, run_in, stop_after, timeless, weights


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_runs_of_one_description_agree_to_the_bit(tmp_path: Path, optimizer: str) -> None:
    run, corpus = make_run(tmp_path, training={"optimizer": optimizer})
    first, second = (run_in(tmp_path / name, run, corpus) for name in ("a", "b"))
    assert first.status == "finished"
    assert replace(first, seconds=0) == replace(second, seconds=0)
    assert equal(weights(tmp_path / "a", run), weights(tmp_path / "b", run))
    a, b = (timeless(list(read_metrics(tmp_path / name))) for name in ("a", "b"))
    assert a == b


def test_another_seed_gives_another_result(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    other, _ = make_run(tmp_path, seed=1)
    assert run.identity != other.identity
    a, b = run_in(tmp_path / "a", run, corpus), run_in(tmp_path / "b", other, corpus)
    assert a.validation != b.validation


def test_a_run_learns(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path, budget={"flops": 1e8})
    result = run_in(tmp_path / "run", run, corpus)
    first = next(record for record in read_metrics(tmp_path / "run") if record["kind"] == "evaluation")
    assert result.validation is not None
    assert result.validation < 0.8 * first["validation"]


def test_the_budget_is_charged_to_the_flop(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    result = run_in(tmp_path / "run", run, corpus)
    spent = sum(stage.steps * step_flops(stage.shape, run.variant, 4) for stage in run.stages)
    last = step_flops(run.schedule.final, run.variant, 4)
    assert result.charged == result.executed == spent
    assert run.budget - last < spent <= run.budget
    assert result.steps == sum(stage.steps for stage in run.stages)
    assert result.tokens == 64 * result.steps


def test_an_empty_schedule_is_plain_training(tmp_path: Path) -> None:
    """The same steps written out by hand, with torch alone, give the same weights."""
    run, corpus = make_run(tmp_path, schedule={"start": SCHEDULE["start"]}, budget={"flops": 5e6})
    run_in(tmp_path / "run", run, corpus)
    model = Transformer(run.schedule.start, run.variant, seed=0)
    (optimizer,) = build_optimizers(model, run.config.training)
    cost = step_flops(run.schedule.start, run.variant, 4)
    law = run.config.training.learning_rate
    for number in range(run.budget // cost):
        tokens_bs = torch.from_numpy(batch(corpus.train, seed=0, step=number, count=4, length=16))
        for group in optimizer.param_groups:
            (group["lr"],) = learning_rates(law, np.array([(number + 0.5) * cost / run.budget])).tolist()
        optimizer.zero_grad()
        fused.cross_entropy(model(tokens_bs[:, :-1]).flatten(0, 1), tokens_bs[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert equal(weights(tmp_path / "run", run), {n: p.detach() for n, p in model.named_parameters()})


def test_micro_batches_give_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    whole, corpus = make_run(tmp_path)
    parts, _ = make_run(tmp_path, training={"micro_tokens": 16})
    a, b = run_in(tmp_path / "a", whole, corpus), run_in(tmp_path / "b", parts, corpus)
    assert a.validation == pytest.approx(b.validation, rel=1e-3)


def test_records_say_what_happened(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    result = run_in(tmp_path / "run", run, corpus)
    records = list(read_metrics(tmp_path / "run"))
    kinds = [record["kind"] for record in records]
    assert kinds.count("evaluation") == 5
    assert kinds[-1] == "final"
    assert records[-1]["validation"] == result.validation
    state = load(tmp_path / "run" / CHECKPOINTS, run, pytest.fail)
    assert state is not None
    windows = loop.windows_of(corpus.validation, TRAINING["evaluation_tokens"], TRAINING["context"])
    assert records[-1]["evaluation"] == step.evaluate(state.model, windows, TRAINING["batch_tokens"])
    assert records[-1]["evaluation"] != result.validation
    events = [record for record in records if record["kind"] == "event"]
    assert [event["step"] for event in events] == [stage.first for stage in run.stages[1:]]
    for event, stage in zip(events, run.stages[1:], strict=True):
        assert event["charged"] == stage.spent
        assert event["change"] < 1e-5
        assert event["loss_after"] == pytest.approx(event["loss_before"], rel=1e-5)
        assert event["new_gradient"] > 0
    trains = [record for record in records if record["kind"] == "train"]
    assert trains[-1]["step"] == result.steps
    for record in trains:
        assert {"loss", "learning_rate", "gradient", "tokens_per_second", "peak_fraction"} <= record.keys()


def test_evaluations_are_evenly_spaced_over_the_budget(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    run_in(tmp_path / "run", run, corpus)
    largest = max(stage.step_flops for stage in run.stages)
    looks = [r["charged"] for r in read_metrics(tmp_path / "run") if r["kind"] == "evaluation"]
    for index, charged in enumerate(looks):
        assert 0 <= charged - run.budget * index / 5 < largest


@pytest.mark.parametrize("peak", [1e9, 100.0])
def test_divergence_ends_the_run_with_a_record(tmp_path: Path, peak: float) -> None:
    rate = {"peak": peak, "law": "constant", "warmup": 0.0}
    run, corpus = make_run(tmp_path, training={"learning_rate": rate, "clip": None})
    result = run_in(tmp_path / "run", run, corpus)
    assert result.status == "diverged"
    assert result.validation is None
    assert result.steps < run.stages[-1].end
    assert list(read_metrics(tmp_path / "run"))[-1]["kind"] == "train"


STOPS: dict[str, Callable[[Sequence[Stage]], int]] = {
    "after the first step": lambda stages: 1,
    "before an event": lambda stages: stages[1].first - 1,
    "at an event": lambda stages: stages[1].first,
    "after an event": lambda stages: stages[1].first + 1,
    "between events": lambda stages: (stages[1].first + stages[2].first) // 2,
    "before the end": lambda stages: stages[2].end - 1,
}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("moment", STOPS)
def test_stopping_and_going_on_gives_the_same_bits(tmp_path: Path, moment: str, optimizer: str) -> None:
    run, corpus = make_run(tmp_path, training={"optimizer": optimizer})
    whole = run_in(tmp_path / "whole", run, corpus)
    with pytest.raises(InterruptedRunError):
        run_in(tmp_path / "parts", run, corpus, stop=stop_after(STOPS[moment](run.stages)))
    parts = run_in(tmp_path / "parts", run, corpus)
    assert replace(parts, seconds=0) == replace(whole, seconds=0)
    assert equal(weights(tmp_path / "whole", run), weights(tmp_path / "parts", run))
    a, b = (timeless(list(read_metrics(tmp_path / name))) for name in ("whole", "parts"))
    assert a == b


def test_evaluations_are_told_at_equal_fractions_whatever_the_schedule(tmp_path: Path) -> None:
    for name, schedule in {"grown": SCHEDULE, "fixed": {"start": SCHEDULE["start"]}}.items():
        run, corpus = make_run(tmp_path, schedule=schedule)
        told: list[tuple[float, float]] = []

        def listen(aligned: float, validation: float, folder: Path, told: list[tuple[float, float]]) -> None:
            told.append((aligned, validation))
            last = list(read_metrics(folder))[-1]
            assert (last["kind"], last["aligned"], last["validation"]) == ("evaluation", aligned, validation)

        folder = tmp_path / name
        run_in(folder, run, corpus, evaluated=partial(listen, folder=folder, told=told))
        assert [aligned for aligned, _ in told] == [0 / 5, 1 / 5, 2 / 5, 3 / 5, 4 / 5]


def test_an_evaluation_after_a_large_step_is_aligned_with_the_last_share_it_covers(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path, budget={"flops": 1e7}, training={"evaluations": 20})
    run_in(tmp_path / "run", run, corpus)
    looks = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "evaluation"]
    assert len(looks) == run.stages[-1].end
    assert [look["aligned"] for look in looks] == [int(20 * look["fraction"]) / 20 for look in looks]


def test_stopping_at_every_evaluation_and_going_on_gives_the_same_bits(tmp_path: Path) -> None:
    """One of them is at an event."""
    run, corpus = make_run(tmp_path)
    whole = run_in(tmp_path / "whole", run, corpus)
    told: list[float] = []

    def prune(aligned: float, validation: float) -> None:
        told.append(aligned)
        raise StopTrainingError

    for _ in range(5):
        with pytest.raises(StopTrainingError):
            run_in(tmp_path / "parts", run, corpus, evaluated=prune)
        assert not (tmp_path / "parts" / RESULT).exists()
    parts = run_in(tmp_path / "parts", run, corpus, evaluated=prune)
    assert told == [0 / 5, 1 / 5, 2 / 5, 3 / 5, 4 / 5]
    assert replace(parts, seconds=0) == replace(whole, seconds=0)
    assert equal(weights(tmp_path / "whole", run), weights(tmp_path / "parts", run))
    a, b = (timeless(list(read_metrics(tmp_path / name))) for name in ("whole", "parts"))
    assert a == b
    events = {record["step"] for record in a if record["kind"] == "event"}
    assert events & {record["step"] for record in a if record["kind"] == "evaluation"}


def test_progress_is_told(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    seen: list[Progress] = []
    run_in(tmp_path / "run", run, corpus, watch=seen.append)
    assert [progress.fraction for progress in seen] == sorted(progress.fraction for progress in seen)
    assert {progress.stage for progress in seen} == {0, 1, 2}
    assert seen[-1].step == seen[-1].steps


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, corpus = make_run(tmp_path)
    whole = run_in(tmp_path / "whole", run, corpus)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with pytest.raises(InterruptedRunError):
        run_in(tmp_path / "parts", run, corpus, stop=stop_after(run.stages[1].first + 5))
    saved = sorted(
        (tmp_path / "parts" / CHECKPOINTS).glob("*.safetensors"), key=lambda p: p.stat().st_mtime_ns
    )
    assert len(saved) == 2
    saved[-1].write_bytes(saved[-1].read_bytes()[:-10])
    warnings: list[str] = []
    parts = run_in(tmp_path / "parts", run, corpus, warn=warnings.append)
    assert len(warnings) == 1
    assert saved[-1].name in warnings[0]
    assert parts.validation == whole.validation


def test_checkpoints_that_take_long_are_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes a second of a clock made for this, and saving six, twice what is quick."""
    now, saved = 0.0, list[int]()

    def backward(*given: Any) -> Any:
        nonlocal now
        now += 1
        return step.backward(*given)

    def save(folder: Path, run: Run, state: TrainState) -> None:
        nonlocal now
        now += 6
        saved.append(state.step)

    run, corpus = make_run(tmp_path)
    monkeypatch.setattr(loop, "backward", backward)
    monkeypatch.setattr(loop, "matmul_peak", lambda device: 1.0)
    monkeypatch.setattr(checkpoint, "save", save)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 2.0)
    run_in(tmp_path / "run", run, corpus)
    assert saved == [3, 8, 13, 18, run.stages[-1].end]


def test_a_foreign_checkpoint_is_passed_over(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    other, _ = make_run(tmp_path, seed=1)
    run_in(tmp_path / "run", other, corpus)
    warnings: list[str] = []
    assert load(tmp_path / "run" / CHECKPOINTS, run, warnings.append) is None
    assert f"belongs to run {other.identity}, not {run.identity}" in warnings[0]


def test_a_checkpoint_that_finds_no_memory_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_file(*given: object, **named: object) -> None:
        raise RuntimeError("CUDA out of memory")

    run, corpus = make_run(tmp_path)
    run_in(tmp_path / "run", run, corpus)
    monkeypatch.setattr(checkpoint, "load_file", load_file)
    with pytest.raises(RuntimeError, match="out of memory"):
        load(tmp_path / "run" / CHECKPOINTS, run, pytest.fail)


class Untouchable:
    """Stands for the test split: whoever looks at it fails."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"the test split was touched: {name}")

    def __getitem__(self, index: object) -> None:
        raise AssertionError(f"the test split was touched: {index}")

    def __len__(self) -> int:
        raise AssertionError("the test split was touched: its length")


def test_training_never_looks_at_the_test_split(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    guarded = replace(corpus, test=Untouchable())  # type: ignore[arg-type]
    assert run_in(tmp_path / "run", run, guarded).status == "finished"


def test_losses_are_those_of_the_validation_split(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    other = replace(corpus, validation=corpus.train)
    a, b = run_in(tmp_path / "a", run, corpus), run_in(tmp_path / "b", run, other)
    assert equal(weights(tmp_path / "a", run), weights(tmp_path / "b", run))
    assert a.validation != b.validation


def test_recorded_learning_rates_follow_the_law_with_events_and_width(tmp_path: Path) -> None:
    rate = {"peak": 1e-3, "rewarm": 0.2, "rewarm_from": 0.1, "event_factor": 0.5, "width_power": 1.0}
    run, corpus = make_run(tmp_path, training={"learning_rate": rate})
    run_in(tmp_path / "run", run, corpus)
    law, seen = run.config.training.learning_rate, set()
    for record in read_metrics(tmp_path / "run"):
        if record["kind"] == "train":
            stage = next(i for i, stage in enumerate(run.stages) if stage.first < record["step"] <= stage.end)
            middle = (record["charged"] - run.stages[stage].step_flops / 2) / run.budget
            events = [past.spent / run.budget for past in run.stages[1 : stage + 1]]
            ratio = 12 / run.stages[stage].shape.hidden
            (expected,) = learning_rates(law, np.array([middle]), events, ratio)
            assert record["learning_rate"] == pytest.approx(expected)
            seen.add(stage)
    assert seen == {0, 1, 2}


def test_a_final_loss_that_is_no_number_is_divergence_and_valid_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, corpus = make_run(tmp_path)
    monkeypatch.setattr(loop, "evaluate", lambda *args: math.nan)
    result = run_in(tmp_path / "run", run, corpus)
    assert result.status == "diverged"
    assert result.validation is None
    for name in (METRICS, RESULT):
        assert "NaN" not in (tmp_path / "run" / name).read_text(encoding="utf-8")


def _zeroed(content: bytes) -> bytes:
    """The last part of it as a power cut may leave it."""
    return content[: len(content) // 2] + bytes(len(content) - len(content) // 2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        _zeroed,
        lambda content: _zeroed(content) + b"\n",
        lambda content: content + bytes(8),
        lambda content: content + bytes(8) + b"\n",
        lambda content: content + b'{}\n{"kind": "train"}\n',
    ],
    ids=["gone", "cut short", "zeroed", "zeroed and ended", "zeros after", "zeros after and ended", "forged"],
)
def test_damaged_records_are_made_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    run, corpus = make_run(tmp_path)
    whole = run_in(tmp_path / "whole", run, corpus)
    with pytest.raises(InterruptedRunError):
        run_in(tmp_path / "parts", run, corpus, stop=stop_after(run.stages[1].first))
    path = tmp_path / "parts" / METRICS
    path.write_bytes(damage(path.read_bytes()))
    before = timeless([one for one in read_metrics(tmp_path / "parts") if "step" in one])
    expected = timeless(list(read_metrics(tmp_path / "whole")))
    assert before == expected[: len(before)], "what is whole can be read"
    parts = run_in(tmp_path / "parts", run, corpus)
    assert parts.validation == whole.validation
    assert timeless(list(read_metrics(tmp_path / "parts"))) == expected
    assert parts.executed >= parts.charged == whole.charged


def test_checkpoints_and_results_wait_for_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            order.append(name)
            return real(*given)

        return call

    monkeypatch.setattr(loop, "append_record", noting("record", append_record))
    monkeypatch.setattr(loop, "sync_records", noting("sync", sync_records))
    monkeypatch.setattr(checkpoint, "save", noting("save", checkpoint.save))
    monkeypatch.setattr(loop, "write_json", noting("result", write_json))
    run, corpus = make_run(tmp_path)
    run_in(tmp_path / "run", run, corpus)
    for kind in ("save", "result"):
        assert order[order.index(kind) - 1] == "sync"
    assert order[-3:] == ["record", "sync", "result"]


def test_leftovers_of_dead_writers_are_swept(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    saved = tmp_path / "run" / CHECKPOINTS
    saved.mkdir(parents=True)
    for name in (".step-3.safetensors.99.tmp", "step-3.safetensors"):
        (saved / name).write_bytes(b"half")
    run_in(tmp_path / "run", run, corpus)
    assert {path.stem for path in saved.iterdir()} == {f"step-{run.stages[-1].end}"}


def test_looking_at_a_run_takes_nothing_from_the_process_that_trains_it(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    run_in(tmp_path / "run", run, corpus)
    being_written = tmp_path / "run" / CHECKPOINTS / ".step-9.safetensors.99.tmp"
    being_written.write_bytes(b"half")
    weights(tmp_path / "run", run)
    assert being_written.exists()


def test_speed_counts_steps_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which gradients take a second and evaluations a hundred; an interruption is no gain."""
    run, corpus = make_run(tmp_path)
    now = [0.0]

    def takes(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            now[0] += seconds
            return function(*args)

        return call

    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(loop, "backward", takes(1.0, step.backward))
    monkeypatch.setattr(loop, "evaluate", takes(100.0, step.evaluate))
    with pytest.raises(InterruptedRunError):
        run_in(tmp_path / "run", run, corpus, stop=stop_after(7))
    run_in(tmp_path / "run", run, corpus)
    trains = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    assert {record["tokens_per_second"] for record in trains} == {64.0}
