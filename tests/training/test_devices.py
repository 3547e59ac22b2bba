"""Training in bfloat16, as on a GPU: what stays float32, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nasgrow.data import batch
from nasgrow.training import loop, step
from nasgrow.training.state import TrainState
from nasgrow.training.step import backward, update
from tests.training.runs import make_run


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
