"""What keeps a GPU busy: the loop waits for it at records only, and every shape is compiled."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nasgrow.data import batch
from nasgrow.training import loop, step
from nasgrow.training.records import read_metrics
from nasgrow.training.state import TrainState
from nasgrow.training.step import backward, update
from tests.training.runs import SCHEDULE, make_run

ASKING = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2")
"""What tells Python a value of a tensor, or needs one to know how large its result is."""


class Waits(TorchDispatchMode):
    """Counts the values that Python asks of tensors: on a GPU it would wait for each."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in ASKING
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_only_records_wait_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    monkeypatch.setattr(loop, "RECORDS", 4)
    schedule = {"start": SCHEDULE["start"], "events": []}
    training = {"optimizer": optimizer, "evaluations": 2}
    run, corpus = make_run(tmp_path, schedule=schedule, budget={"flops": 1.5e8}, training=training)
    with Waits() as waits:  # type: ignore[no-untyped-call]
        result = loop.train(run, corpus, tmp_path, device=torch.device("cpu"))
    kinds = Counter(record["kind"] for record in read_metrics(tmp_path))
    assert result.steps > 10 * kinds.total()
    # The mean loss and the norm of a train record, the loss of each evaluation, two at the end; else nothing.
    assert waits.count == 2 * kinds["train"] + kinds["evaluation"] + 2 * kinds["final"]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_however_many_steps_there_are_events_masks_and_micro_batches_wait_as_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    monkeypatch.setattr(loop, "RECORDS", 4)
    training = {"optimizer": optimizer, "evaluations": 2, "micro_tokens": 16}
    training["operator"] = {"kind": "masked", "opening": 0.3}
    steps, waited, kinds = [], [], []
    for flops in (3e7, 6e7):
        folder = tmp_path / f"{flops:g}"
        run, corpus = make_run(folder, budget={"flops": flops}, training=training)
        with Waits() as waits:  # type: ignore[no-untyped-call]
            steps.append(loop.train(run, corpus, folder, device=torch.device("cpu")).steps)
        waited.append(waits.count)
        kinds.append(Counter(record["kind"] for record in read_metrics(folder)))
    assert steps[1] > 1.5 * steps[0]
    assert kinds[0] == kinds[1]
    assert kinds[0]["event"] == 2
    assert waited[0] == waited[1]


def test_under_bfloat16_weights_gradients_and_moments_stay_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, corpus = make_run(tmp_path)
    config = run.config.training
    tokens_bs = batch(corpus.train, seed=0, step=0, count=config.sequences, length=config.context)

    def first_step() -> tuple[float, TrainState]:
        state = TrainState.fresh(run, device=torch.device("cpu"))
        loss = backward(state.model, tokens_bs, config.batch_tokens)
        update(state.optimizers, state.model, 1e-3, config.clip)
        return float(loss), state

    exact, _ = first_step()
    monkeypatch.setattr(step, "compute_dtype", lambda device: torch.bfloat16)
    rounded, state = first_step()
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.01)
    tensors: list[torch.Tensor] = [*state.model.parameters()]
    tensors += [tensor.grad for tensor in tensors if tensor.grad is not None]
    tensors += [value for one in state.optimizers for of in one.state.values() for value in of.values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


def test_bfloat16_costs_little_and_weights_rounded_to_it_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounding(optimizers: Any, model: Any, *rest: Any) -> torch.Tensor:
        norm = update(optimizers, model, *rest)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.bfloat16())
        return norm

    run, corpus = make_run(tmp_path, budget={"flops": 6e7})

    def loss(name: str) -> float:
        (tmp_path / name).mkdir()
        validation = loop.train(run, corpus, tmp_path / name, device=torch.device("cpu")).validation
        assert validation is not None
        return validation

    exact = loss("float32")
    monkeypatch.setattr(step, "compute_dtype", lambda device: torch.bfloat16)
    assert abs(loss("bfloat16") - exact) < 0.003
    monkeypatch.setattr(loop, "update", rounding)
    assert abs(loss("planted") - exact) > 0.003
