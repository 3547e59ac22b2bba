"""Masks in a run: taken up in the middle of an opening, evaluated, exported, and open at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nasgrow.data import Corpus
from nasgrow.export import export, load_exported
from nasgrow.training import checkpoint
from nasgrow.training.folder import open_folder
from nasgrow.training.loop import InterruptedRunError, train, windows_of
from nasgrow.training.records import CHECKPOINTS, read_metrics
from nasgrow.training.resume import trained
from nasgrow.training.run import Run
from nasgrow.training.step import evaluate
from tests.training.runs import SCHEDULE, equal, make_run, run_in, stop_after, timeless, weights

CPU = torch.device("cpu")


def masked_run(folder: Path, **changes: Any) -> tuple[Run, Corpus]:
    """The masks of the first event, at 30%, are still opening at the second, at 60%."""
    training = {"operator": {"kind": "masked", "opening": 0.5}, "evaluations": 30}
    return make_run(folder, training=training, budget={"flops": 6e7}, **changes)


def events(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(folder) if record["kind"] == "event"]


def test_a_run_that_is_interrupted_while_masks_open_ends_with_the_same_bits(tmp_path: Path) -> None:
    run, corpus = masked_run(tmp_path)
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    run_in(whole, run, corpus)
    first, second = run.stages[1].first, run.stages[2].first
    begun = [stage.spent / run.budget for stage in run.stages]
    for at, expected in ((first + 1, {begun[1]}), (second - 1, {begun[1]}), (second + 1, set(begun[1:]))):
        state = checkpoint.load(parted / CHECKPOINTS, run, pytest.fail)
        with pytest.raises(InterruptedRunError):
            run_in(parted, run, corpus, stop=stop_after(at - (state.step if state else 0)))
        state = checkpoint.load(parted / CHECKPOINTS, run, pytest.fail)
        assert state is not None
        assert {mask.begun for mask in state.masks} == expected
    run_in(parted, run, corpus)
    assert equal(weights(whole, run), weights(parted, run))
    assert timeless(list(read_metrics(whole))) == timeless(list(read_metrics(parted)))
    for event in events(whole):
        assert event["change"] < 1e-5, "what is seen does not change at an event"
        assert event["new_gradient"] > 0
    end = checkpoint.load(whole / CHECKPOINTS, run, pytest.fail)
    assert end is not None
    assert not end.masks


def test_what_is_evaluated_sampled_and_exported_is_what_is_seen(tmp_path: Path) -> None:
    run, corpus = masked_run(tmp_path)
    due = [record["step"] for record in all_evaluations(tmp_path / "whole", run, corpus)]
    at = next(step for step in due if step > run.stages[1].first + 2)
    assert at < run.stages[2].first
    folder = tmp_path / "run"
    with open_folder(folder, run, corpus.tokenizer, CPU), pytest.raises(InterruptedRunError):
        train(run, corpus, folder, device=CPU, stop=stop_after(at))
    windows = windows_of(corpus.validation, run.config.training.evaluation_tokens, 16)
    raw = checkpoint.load(folder / CHECKPOINTS, run, pytest.fail)
    assert raw is not None
    assert raw.step == at
    seen = trained(folder).model
    recorded = next(
        r["validation"] for r in all_evaluations(tmp_path / "whole", run, corpus) if r["step"] == at
    )
    assert evaluate(seen, windows, 64) == recorded
    assert evaluate(raw.model, windows, 64) != recorded
    export(folder, tmp_path / "exported")
    assert evaluate(load_exported(tmp_path / "exported"), windows, 64) == recorded


def all_evaluations(folder: Path, run: Run, corpus: Corpus) -> list[dict[str, Any]]:
    if not folder.exists():
        run_in(folder, run, corpus)
    return [record for record in read_metrics(folder) if record["kind"] == "evaluation"]


def test_a_late_event_is_open_at_the_end(tmp_path: Path) -> None:
    schedule = {**SCHEDULE, "events": [{"at": 0.97, "grow": [{"expand": "mlp", "to": 24}]}]}
    run, corpus = masked_run(tmp_path, schedule=schedule)
    assert run_in(tmp_path / "run", run, corpus).status == "finished"
    state = checkpoint.load(tmp_path / "run" / CHECKPOINTS, run, pytest.fail)
    assert state is not None
    assert not state.masks
