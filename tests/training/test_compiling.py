"""What is compiled, and how often: on a GPU, compiling can cost more than training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir

from nasgrow import model as models
from nasgrow.config import TrainingConfig
from nasgrow.expansions import GrowMlp
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.shape import Shape
from nasgrow.training import compiling, determinism, loop, step, step_timing
from nasgrow.training.compiling import compile_for, compile_layers, mean_loss
from nasgrow.verify import PAPER
from tests.training.runs import SCHEDULE, make_run

# Warnings of the compiler: when it is imported, and when it looks at tensors (it ignores these by default).
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

CPU = torch.device("cpu")
TINY = Shape.uniform(hidden=4, layers=1, mlp=4, heads=1, key=2, value=2)


DEEPER: dict[str, Any] = {
    "start": SCHEDULE["start"],
    "events": [{"at": 0.5, "grow": [{"expand": "layers", "at": [1]}]}],
}
"""A layer of the same kind is added: a graph for layers and one for the loss are all."""


@dataclass(eq=False)
class Counting:
    """A backend that runs graphs as they are, and counts them."""

    graphs: int = 0
    static: bool = True

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.graphs += 1
        self.static &= all(isinstance(one, Tensor) for one in inputs)  # sizes in general are inputs as well
        return graph.forward


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    """Runs are compiled by it, and compute in bfloat16, as they do on a GPU."""
    torch.compiler.reset()
    counters.clear()
    counting = Counting()
    monkeypatch.setattr(loop, "compile_for", lambda model, device: compile_layers(model, counting))
    monkeypatch.setattr(step, "compute_dtype", lambda device: torch.bfloat16)
    yield counting
    torch.compiler.reset()


def breaks() -> int:
    return sum(counters["graph_break"].values())


def trained(tmp_path: Path, seed: int, schedule: dict[str, Any] = SCHEDULE) -> float:
    """Train a run, whose last evaluation chunk is not full; its loss."""
    training = {"evaluation_tokens": 96}
    run, corpus = make_run(tmp_path, seed=seed, budget={"flops": 1e7}, schedule=schedule, training=training)
    folder = tmp_path / str(seed)
    folder.mkdir(parents=True)
    result = loop.train(run, corpus, folder, device=CPU)
    assert result.validation is not None
    return result.validation


def test_a_run_compiles_each_kind_of_layer_and_each_loss_once_and_the_next_run_nothing(
    tmp_path: Path, backend: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = trained(tmp_path, 0)
    # Layers of the first stage, of the second, and a new one of the third; the loss at two hidden sizes; and
    # the old layer with its wider MLP. Checks at events and the chunk that is not full compile nothing.
    assert backend.graphs == 6
    assert backend.static
    assert breaks() == 0
    trained(tmp_path, 1)
    assert backend.graphs == 6
    monkeypatch.setattr(loop, "compile_for", lambda model, device: None)
    assert trained(tmp_path / "eager", 0) == compiled


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("fault", ["none", "compiled checks", "graph break"])
def test_these_counts_would_notice_a_fault(
    tmp_path: Path, backend: Counting, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "compiled checks":
        for module in (loop, step):
            monkeypatch.setattr(module, "eagerly", lambda model: nullcontext())
    if fault == "graph break":
        norm = models.norm

        def breaking(x_th: Tensor, gain_h: Tensor, variant: Any) -> Tensor:
            torch._dynamo.graph_break()
            return norm(x_th, gain_h, variant)

        monkeypatch.setattr(models, "norm", breaking)
    trained(tmp_path, 0, DEEPER)
    assert {"none": backend.graphs == 2, "compiled checks": backend.graphs > 2}.get(fault, breaks() > 0)


def test_graphs_do_not_depend_on_depth(backend: Counting) -> None:
    tokens_bs = torch.zeros((2, 5), dtype=torch.int64)
    for layers in (1, 3):
        model = Transformer(Shape.uniform(hidden=4, layers=layers, mlp=4, heads=1, key=2, value=2), PAPER)
        compile_layers(model, backend)
        with torch.autocast("cpu", torch.bfloat16):
            mean_loss(model, tokens_bs).backward()
    assert backend.graphs == 2


def test_the_compiler_gives_eager_losses_over_an_event(
    tmp_path: Path, backend: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the compiler's passes all but the code generation, which tests/benchmarks/compiled.py measures."""
    monkeypatch.setattr(loop, "compile_for", lambda model, device: compile_layers(model, "aot_eager"))
    compiled = trained(tmp_path / "compiled", 0, DEEPER)
    monkeypatch.setattr(loop, "compile_for", lambda model, device: None)
    assert compiled == pytest.approx(trained(tmp_path / "eager", 0, DEEPER), abs=2e-3)


def test_plans_and_the_check_of_bits_run_compiled_steps(
    backend: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (step_timing, determinism):
        monkeypatch.setattr(module, "compile_for", lambda model, device: compile_layers(model, backend))
    training = TrainingConfig(context=PAPER.context, batch_tokens=PAPER.context)
    step_timing.measure_steps([(TINY, training)], PAPER, CPU)
    assert backend.graphs == 2
    wider = Shape.uniform(hidden=4, layers=1, mlp=8, heads=1, key=2, value=2)
    determinism.digest(TINY, wider, PAPER, training, CPU)
    assert backend.graphs == 3, "the wider layer's"


def test_every_shape_is_compiled_for_itself_however_many_came_before(backend: Counting) -> None:
    model = Transformer(TINY, PAPER)
    for mlp in range(4, 14):
        if mlp > 4:
            grow(model, [], [GrowMlp(mlp)], seed=0)
        compile_layers(model, backend)
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            model(torch.zeros((1, 4), dtype=torch.int64))
    assert backend.graphs == 10, "torch would stop at 8"


@pytest.mark.parametrize("planted", [False, True])
def test_graphs_are_for_sizes_as_they_are(
    backend: Counting, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    if planted:  # then torch goes over to sizes in general at the second
        monkeypatch.setattr(compiling, "_options", lambda backend: {"backend": backend})
    for hidden in (4, 6, 8):
        model = Transformer(Shape.uniform(hidden=hidden, layers=1, mlp=4, heads=1, key=2, value=2), PAPER)
        compile_layers(model, backend)
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            model(torch.zeros((hidden, 4), dtype=torch.int64))
    assert backend.static is not planted


def test_the_compiler_measures_no_kernels_to_choose_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(models.Block, "compile", lambda layer, **options: asked.update(options))
    compile_layers(Transformer(TINY, PAPER))
    assert asked["options"] == {"deterministic": True}


def test_kernels_are_kept_where_all_workers_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/of/a/user")  # afterwards it is as it was
    model = Transformer(TINY, PAPER)
    compile_for(model, torch.device("cuda"))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/of/a/user"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    model.backend = None
    compile_for(model, CPU)
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    assert model.backend is None, "on the CPU nothing is compiled"
    compile_for(model, torch.device("cuda"))
    assert cache_dir() == str(tmp_path / "compiled"), "that is where torch looks"
    assert model.backend == "inductor"
