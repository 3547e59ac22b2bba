"""What keeps a GPU busy: the loop waits for it at records only, and every shape is compiled."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from nasgrow.expansions import GrowMlp
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.shape import Shape
from nasgrow.training import loop
from nasgrow.training.records import read_metrics
from nasgrow.training.state import TrainState
from nasgrow.training.step import backward, compile_afresh, compile_for, update
from tests.training.runs import SCHEDULE, make_run


class Waits(TorchDispatchMode):
    """Counts the values that Python asks of tensors: on a GPU it would wait for each."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
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


# What the CPU computes by hand, and a GPU does not, makes torch warn where it is compiled.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_every_shape_is_compiled_for_itself_however_many_came_before() -> None:
    torch._dynamo.reset()
    counters.clear()
    model = Transformer(Shape.uniform(hidden=4, layers=1, mlp=4, heads=1, key=2, value=2, context=4, vocab=5))
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
