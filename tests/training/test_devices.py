"""What keeps a GPU busy: the loop waits for it at records only, and every shape is compiled."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.utils._python_dispatch import TorchDispatchMode

from nasgrow.data import batch
from nasgrow.expansions import GrowMlp
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.shape import Shape
from nasgrow.training import loop, step
from nasgrow.training.records import read_metrics
from nasgrow.training.state import TrainState
from nasgrow.training.step import backward, compile_afresh, compile_for, update
from nasgrow.verify import PAPER
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
    # The mean loss and the norm of a train record, the loss of each evaluation; nothing at any other step.
    assert waits.count == 2 * kinds["train"] + kinds["evaluation"] + kinds["final"]


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
    assert step.reduced(torch.device("cuda"))
    run, corpus = make_run(tmp_path)
    config = run.config.training
    tokens_bs = batch(corpus.train, seed=0, step=0, count=config.sequences, length=config.context)

    def first_step() -> tuple[float, TrainState]:
        state = TrainState.fresh(run, device=torch.device("cpu"))
        seen: list[torch.dtype] = []
        state.model.register_forward_hook(lambda model, tokens, logits: seen.append(logits.dtype))
        loss = backward(state.model, tokens_bs, config.batch_tokens)
        update(state.optimizers, state.model, 1e-3, config.clip)
        dtypes.append(seen[0])
        return float(loss), state

    dtypes: list[torch.dtype] = []
    exact, _ = first_step()
    monkeypatch.setattr(step, "reduced", lambda device: True)
    rounded, state = first_step()
    assert dtypes == [torch.float32, torch.bfloat16]
    assert rounded == pytest.approx(exact, rel=0.01)
    tensors: list[torch.Tensor] = [*state.model.parameters()]
    tensors += [tensor.grad for tensor in tensors if tensor.grad is not None]
    tensors += [value for one in state.optimizers for of in one.state.values() for value in of.values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


def test_kernels_are_kept_where_all_workers_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Transformer] = []
    monkeypatch.setattr(step, "compile_afresh", compiled.append)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "of somebody")  # afterwards it is as it was
    model = Transformer(Shape.uniform(hidden=4, layers=1, mlp=4, heads=1, key=2, value=2), PAPER)
    compile_for(model, torch.device("cuda"))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "of somebody"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    compile_for(model, torch.device("cpu"))
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    assert len(compiled) == 1, "on the CPU nothing is compiled"
    compile_for(model, torch.device("cuda"))
    assert cache_dir() == str(tmp_path / "compiled"), "that is where torch looks"
    assert len(compiled) == 2


# What the CPU computes by hand, and a GPU does not, makes torch warn where it is compiled.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_every_shape_is_compiled_for_itself_however_many_came_before() -> None:
    torch._dynamo.reset()
    counters.clear()
    model = Transformer(Shape.uniform(hidden=4, layers=1, mlp=4, heads=1, key=2, value=2), PAPER)
    for mlp in range(4, 16):
        if mlp > 4:
            grow(model, [], [GrowMlp(mlp)], seed=0)
        compile_afresh(model, backend="eager")
        with torch.no_grad():
            model(torch.zeros((1, 4), dtype=torch.int64))
    assert counters["frames"] == {"total": 12, "ok": 12}
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and there is none here")
def test_a_step_on_a_gpu_is_handed_over_without_waiting(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path)
    device, config = torch.device("cuda"), run.config.training
    state = TrainState.fresh(run, device=device)
    compile_for(state.model, device)
    tokens_bs = np.zeros((config.sequences, config.context + 1), dtype=np.int64)
    for mode in ("default", "default", "error"):  # the first steps compile
        torch.cuda.set_sync_debug_mode(mode)
        try:
            loss = backward(state.model, tokens_bs, config.batch_tokens)
            update(state.optimizers, state.model, 1e-3, config.clip)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert np.isfinite(float(loss))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and there is none here")
def test_a_run_on_a_gpu_ends_where_one_on_the_cpu_does(tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    results = []
    for name in ("cpu", "cuda"):
        (tmp_path / name).mkdir()
        results.append(loop.train(run, corpus, tmp_path / name, device=torch.device(name)))
    on_cpu, on_gpu = (result.validation for result in results)
    assert on_cpu is not None
    assert on_gpu == pytest.approx(on_cpu, rel=0.02)  # bfloat16
