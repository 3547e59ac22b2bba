"""What can only be measured on a GPU: ``pytest -m gpu -s`` on a machine that has one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

from nasgrow.config import TrainingConfig
from nasgrow.flops import step_flops
from nasgrow.model import Transformer
from nasgrow.shape import Shape, Variant
from nasgrow.training import loop
from nasgrow.training.compiling import compile_for, eagerly
from nasgrow.training.determinism import digest
from nasgrow.training.device import compute_dtype, pick_device
from nasgrow.training.machine import matmul_peak
from nasgrow.training.optimizers import build_optimizers
from nasgrow.training.roofline import A100, step_bound
from nasgrow.training.state import TrainState
from nasgrow.training.step import backward, evaluate, update
from nasgrow.training.step_timing import measure_steps
from tests.training.runs import make_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and there is none here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

VARIANT = Variant(vocab=8192, context=256, activation="gelu", positions="rope", final_norm=True)
SHAPES = [
    Shape.uniform(hidden=64 * n, layers=layers, mlp=256 * n, heads=n, key=64, value=64)
    for n, layers in [(1, 2), (4, 6), (8, 8)]
]


@pytest.fixture
def gpu() -> torch.device:
    return pick_device()


def test_a_step_is_handed_over_without_waiting(tmp_path: Path, gpu: torch.device) -> None:
    run, _ = make_run(tmp_path)
    config = run.config.training
    state = TrainState.fresh(run, device=gpu)
    compile_for(state.model, gpu)
    tokens_bs = np.zeros((config.sequences, config.context + 1), dtype=np.int64)
    for mode in ("default", "default", "error"):  # the first steps compile
        torch.cuda.set_sync_debug_mode(mode)
        try:
            loss = backward(state.model, tokens_bs, config.batch_tokens)
            update(state.optimizers, state.model, 1e-3, config.clip)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert np.isfinite(float(loss))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_kernels_of_a_step(gpu: torch.device, optimizer: str) -> None:
    """Prints how many there are, copies and fills among them."""
    training = TrainingConfig(context=256, batch_tokens=16384, optimizer=optimizer)  # type: ignore[arg-type]
    tokens_bs = np.zeros((training.sequences, VARIANT.context + 1), dtype=np.int64)
    for shape in SHAPES:
        model = Transformer(shape, VARIANT, device=gpu)
        compile_for(model, gpu)
        optimizers = build_optimizers(model, training)
        for _ in range(3):  # the first compile
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                backward(model, tokens_bs, training.batch_tokens)
                update(optimizers, model, 1e-3, training.clip)
                torch.cuda.synchronize(gpu)
        count = sum(event.device_type.name == "CUDA" for event in profiled.events() or [])
        print(f"\n{optimizer}, {shape}: {count} kernels a step")
        assert count > 0


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_ends_where_one_on_the_cpu_does(tmp_path: Path, gpu: torch.device, optimizer: str) -> None:
    run, corpus = make_run(tmp_path, training={"optimizer": optimizer})
    losses = []
    for name, device in (("cpu", torch.device("cpu")), ("gpu", gpu)):
        (tmp_path / name).mkdir()
        losses.append(loop.train(run, corpus, tmp_path / name, device=device).validation)
    assert losses[0] is not None
    assert losses[1] == pytest.approx(losses[0], rel=0.02)  # bfloat16


def test_compiled_losses_are_those_of_eager_steps(tmp_path: Path, gpu: torch.device) -> None:
    run, corpus = make_run(tmp_path)
    config = run.config.training
    state = TrainState.fresh(run, device=gpu)
    windows_bs = loop.windows_of(corpus.validation, config.batch_tokens, config.context)
    eager = evaluate(state.model, windows_bs, config.batch_tokens)
    compile_for(state.model, gpu)
    assert evaluate(state.model, windows_bs, config.batch_tokens) == pytest.approx(eager, abs=5e-3)
    with eagerly(state.model):
        assert evaluate(state.model, windows_bs, config.batch_tokens, compiled=False) == eager


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_bits_repeat(gpu: torch.device, optimizer: str) -> None:
    training = TrainingConfig(context=256, batch_tokens=16384, optimizer=optimizer)  # type: ignore[arg-type]
    first, second = (digest(SHAPES[0], SHAPES[1], VARIANT, training, gpu) for _ in range(2))
    assert first == second


def test_a_run_with_two_events_compiles_six_graphs_without_breaks(tmp_path: Path, gpu: torch.device) -> None:
    torch.compiler.reset()
    counters.clear()
    for seed in range(2):
        run, corpus = make_run(tmp_path, seed=seed)
        (tmp_path / str(seed)).mkdir()
        loop.train(run, corpus, tmp_path / str(seed), device=gpu)
    assert counters["frames"] == {"total": 6, "ok": 6}
    assert not counters["graph_break"]


def test_a_run_leaves_no_memory_behind(tmp_path: Path, gpu: torch.device) -> None:
    held = []
    for seed in range(3):
        run, corpus = make_run(tmp_path, seed=seed)
        (tmp_path / str(seed)).mkdir()
        loop.train(run, corpus, tmp_path / str(seed), device=gpu)
        torch.cuda.synchronize(gpu)
        held.append(torch.cuda.memory_allocated(gpu))
    assert held[2] == held[1], "the first may leave workspaces"


def test_share_of_peak_by_shape(gpu: torch.device) -> None:
    """Prints what is measured; the roofline of an A100 is shown beside it, and bounds no other card."""
    training = TrainingConfig(context=256, batch_tokens=16384)
    timings = measure_steps([(shape, training) for shape in SHAPES], VARIANT, gpu).timings
    peak = matmul_peak(gpu)
    print(f"\n{torch.cuda.get_device_name(gpu)}, {compute_dtype(gpu)}: {peak:.3g} FLOP/s")
    for shape, timing in zip(SHAPES, timings, strict=True):
        share = step_flops(shape, VARIANT, training.sequences) / timing.step / peak
        bound = step_bound(shape, VARIANT, training, A100)
        print(f"{shape}: {1e3 * timing.step:.2f} ms, {share:.1%} of peak; A100 bound {1e3 * bound:.2f} ms")
        assert 0 < share < 1
