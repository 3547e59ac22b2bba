"""A state with young entries, in processes that know nothing of growth."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode

from nasgrow.adam_ages import AGES
from nasgrow.expansions import AddHeads, GrowMlp
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.shape import Shape
from nasgrow.verify import PAPER
from tests.steps import train

SHAPE = Shape.uniform(hidden=8, layers=2, mlp=8, heads=1, key=4, value=4)

CONTINUE_MODEL = """
import sys
import torch
from nasgrow.model import Transformer
from nasgrow.shape import Shape, Variant
from tests.steps import train

saved = torch.load("saved.pt")
shape = Shape.uniform(hidden=8, layers=2, mlp=20, heads=3, key=4, value=4)
model = Transformer(shape, Variant(vocab=29, context=12))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
train(model, optimizer, steps=3, first=5)
torch.save(model.state_dict(), "continued.pt")
assert not [name for name in sys.modules if name.startswith("nasgrow.growth")]
"""

CONTINUE_TENSORS = """
import torch

try:
    torch.load("saved.pt")
except Exception as error:
    assert "nasgrow.adam_ages.Ages" in str(error), error
else:
    raise AssertionError("a state with young entries was loaded as if it were plain")
saved = torch.load("saved.pt", weights_only=False)
parameters = [torch.nn.Parameter(values) for values in saved["model"].values()]
optimizer = torch.optim.AdamW(parameters, lr=1e-2)
optimizer.load_state_dict(saved["optimizer"])
for _ in range(3):
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
torch.save({name: p.detach() for name, p in zip(saved["model"], parameters)}, "continued.pt")
"""


def run(script: str, folder: Path) -> dict[str, torch.Tensor]:
    """Continue in a process of its own what was saved; return its parameters."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    continued: dict[str, torch.Tensor] = torch.load(folder / "continued.pt")
    return continued


def grown() -> tuple[Transformer, AdamW]:
    """A model whose event is two steps ago."""
    model = Transformer(SHAPE, PAPER)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, steps=3)
    grow(model, optimizer, [GrowMlp(20), AddHeads(3)])
    train(model, optimizer, steps=2, first=3)
    return model, optimizer


class Calls(TorchDispatchMode):
    """Counts the calls of an operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layers", [2, 5])
def test_all_boxes_of_an_event_are_corrected_in_eight_calls(layers: int) -> None:
    model = Transformer(Shape.uniform(hidden=8, layers=layers, mlp=8, heads=1, key=4, value=4), PAPER)
    optimizer = AdamW(model.parameters(), lr=1e-2, fused=True)
    train(model, optimizer, steps=3)
    grow(model, optimizer, [GrowMlp(20), AddHeads(3)])
    train(model, optimizer, steps=2, first=3)
    boxes = [box for state in optimizer.state.values() if AGES in state for box in state[AGES].boxes]
    assert len(boxes) >= 6 * layers
    with Calls() as calls:
        optimizer.step()
    corrections = {name: count for name, count in calls.counts.items() if name.startswith("_foreach")}
    # Four for boxes that are contiguous memory and four for the others; and one addition is of the optimizer
    # itself, which counts its steps.
    assert corrections == {"_foreach_mul_": 4, "_foreach_add_": 3, "_foreach_addcmul_": 2}
    assert not {"mul_", "add_", "addcmul_"} & calls.counts.keys()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes in other folders import this package."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


@pytest.mark.usefixtures("here")
def test_a_process_that_knows_only_the_model_continues_as_if_it_had_grown_the_model(tmp_path: Path) -> None:
    model, optimizer = grown()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved.pt")
    continued = run(CONTINUE_MODEL, tmp_path)
    train(model, optimizer, steps=3, first=5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(continued[name], parameter.detach(), rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.usefixtures("here")
def test_a_process_that_knows_only_torch_refuses_or_continues_so_too(tmp_path: Path) -> None:
    model, optimizer = grown()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved.pt")
    continued = run(CONTINUE_TENSORS, tmp_path)
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(continued[name], parameter.detach(), rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.usefixtures("here")
def test_no_optimizer_is_hooked_where_nothing_is_young(tmp_path: Path) -> None:
    script = """
import torch
import nasgrow.growth
from nasgrow.model import Transformer
from torch.optim.optimizer import register_optimizer_step_pre_hook
hooks = register_optimizer_step_pre_hook(lambda *given: None).hooks_dict_ref()
assert len(hooks) == 1, hooks
torch.save({}, "continued.pt")
"""
    assert run(script, tmp_path) == {}
