"""Modules of a grown model: they live on, and with them hooks, classes and methods that others gave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Block, Heads, Transformer
from nasgrow.shape import Shape
from nasgrow.verify import EXPANSIONS, PAPER
from tests.growth.snapshots import everything_of, same, trained
from tests.steps import backward, tokens_for


@pytest.mark.parametrize("training", [True, False])
def test_training_and_evaluation_mode_are_kept_by_every_module(training: bool) -> None:
    model, optimizer = trained()
    model.train(training)
    grow(model, optimizer, EXPANSIONS["everything"])
    assert {module.training for module in model.modules()} == {training}


@pytest.mark.parametrize(
    ("expansions", "place"),
    [
        ([GrowMlp(40, layers=(0,))], 1),
        ([GrowHidden(48)], 1),
        ([InsertLayers((0,))], 2),
        ([InsertLayers((1, 1, 2))], 3),
        ([InsertLayers((0, 1)), GrowKeys(12, layers=(1,)), GrowHidden(30)], 3),
    ],
    ids=str,
)
def test_hooks_stay_on_a_layer_whose_sizes_stay(expansions: Sequence[Expansion], place: int) -> None:
    model, optimizer = trained()
    called = []
    hooked = model.layers[1]
    hooked.register_forward_hook(lambda module, given, result: called.append(module))
    inner = hooked.get_submodule("heads.0")
    inner.register_forward_hook(lambda module, given, result: called.append(module))
    grow(model, optimizer, expansions)
    assert model.layers[place] is hooked
    model(tokens_for(model.variant))
    assert [id(module) for module in called] == [id(inner), id(hooked)]


def test_every_layer_keeps_its_own_module_among_equal_ones() -> None:
    shape = Shape.uniform(hidden=6, layers=3, mlp=6, heads=2, key=3, value=3)
    model = Transformer(shape, PAPER)
    before = list(model.layers)
    grow(model, None, [InsertLayers((0, 2))])
    assert [layer in before for layer in model.layers] == [False, True, True, False, True]
    assert [id(layer) for layer in model.layers if layer in before] == [id(layer) for layer in before]


def test_a_layer_whose_sizes_change_keeps_its_module_and_its_parameters_their_order() -> None:
    model, optimizer = trained()
    before = list(model.layers)
    grow(model, optimizer, EXPANSIONS["everything"])
    assert [layer for layer in model.layers if layer in before] == before
    usual = [name for name, _ in Transformer(model.shape, PAPER).named_parameters()]
    assert [name for name, _ in model.named_parameters()] == usual


class Louder(Block):
    """A layer that someone else wrote."""

    def forward(self, *given: Any) -> Tensor:
        return 1.5 * super().forward(*given)


class LouderHeads(Heads):
    """Heads that someone else wrote."""

    def forward(self, *given: Any) -> Tensor:
        return 1.5 * super().forward(*given)


def hook(module: nn.Module) -> None:
    module.register_forward_hook(lambda module, given, result: 1.5 * result)


def hook_before(module: nn.Module) -> None:
    module.register_forward_pre_hook(lambda module, given: (1.5 * given[0], *given[1:]))


def subclass(module: nn.Module) -> None:
    module.__class__ = Louder if isinstance(module, Block) else LouderHeads


def patch(module: nn.Module) -> None:
    usual = module.forward
    module.forward = MethodType(lambda self, *given: 1.5 * usual(*given), module)


CHANGES: dict[str, Callable[[nn.Module], None]] = {
    "a hook": hook,
    "a hook before": hook_before,
    "a subclass": subclass,
    "a patched forward": patch,
}


def change(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).detach().abs().max() / expected.detach().abs().max())


@pytest.mark.parametrize("place", ["layers.0", "layers.0.heads.0", "layers.1.heads.0"])
@pytest.mark.parametrize("kind", CHANGES)
def test_what_others_made_of_a_module_outlives_its_growth(kind: str, place: str) -> None:
    model, optimizer = trained()
    tokens_bs = tokens_for(model.variant)
    plain = model(tokens_bs)
    CHANGES[kind](model.get_submodule(place))
    with torch.no_grad():
        changed = model(tokens_bs)
        assert change(changed, plain) > 0.01
        grow(model, optimizer, [GrowMlp(40), GrowKeys(12, layers=(1,)), AddHeads(5), GrowHidden(48)])
        assert change(model(tokens_bs), changed) < 1e-12


def test_a_hook_can_be_removed_after_growing() -> None:
    model, _ = trained()
    tokens_bs = tokens_for(model.variant)
    plain = model(tokens_bs)
    handle = model.layers[0].register_forward_hook(lambda module, given, result: 1.5 * result)
    grow(model, None, [GrowMlp(40)])
    handle.remove()
    assert change(model(tokens_bs), plain) < 1e-12


REGROUPED: dict[str, tuple[Expansion, ...]] = {
    "joined": (GrowKeys(8, layers=(0,)), GrowValues(8, layers=(0,))),
    "cut": (GrowKeys(9, layers=(0,), heads=(0,)),),
}
LOST: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "a hook": (hook, "forward hooks"),
    "a hook before": (hook_before, "forward pre hooks"),
    "a subclass": (subclass, "class LouderHeads"),
    "a patched forward": (patch, "forward"),
    "a buffer": (lambda module: module.register_buffer("counts", torch.zeros(2)), "buffers"),
    "a module": (lambda module: module.add_module("dropout", nn.Dropout()), "modules"),
}


@pytest.mark.parametrize("how", REGROUPED)
@pytest.mark.parametrize("kind", LOST)
def test_heads_that_are_joined_or_cut_are_refused_if_that_would_lose_something(kind: str, how: str) -> None:
    model, optimizer = trained()
    change_it, what = LOST[kind]
    change_it(model.get_submodule("layers.0.heads.0"))
    before = everything_of(model, optimizer)
    name = r"layers\.0\.heads\.0"
    with pytest.raises(ValueError, match=f"{name}.* would lose its {what}$"):
        grow(model, optimizer, REGROUPED[how])
    assert same(everything_of(model, optimizer), before)


@pytest.mark.parametrize("how", REGROUPED)
def test_heads_that_nobody_changed_are_joined_and_cut(how: str) -> None:
    model, optimizer = trained()
    gone = model.get_submodule("layers.0.heads.0").register_full_backward_hook(lambda *given: None)
    gone.remove()
    grow(model, optimizer, REGROUPED[how])


class Stranger(nn.Module):
    """A layer that is none of ours, with the parameters of one."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.heads = block.heads
        for name, parameter in block.named_parameters(recurse=False):
            self.register_parameter(name, parameter)


def test_a_layer_of_a_foreign_class_is_refused_by_name() -> None:
    model, _ = trained()
    model.layers[0] = Stranger(model.layers[0])
    before = everything_of(model)
    with pytest.raises(ValueError, match=r"layers\.0 is a Stranger"):
        grow(model, None, [GrowMlp(40)])
    assert same(everything_of(model), before)
    grow(model, None, [GrowMlp(40, layers=(1,))])


# Hooks on gradients

GRADIENT_HOOKS: dict[str, Callable[[nn.Parameter, Callable[[Tensor], None]], object]] = {
    "on the gradient": lambda parameter, hook: parameter.register_hook(hook),
    "after it": lambda parameter, hook: parameter.register_post_accumulate_grad_hook(hook),
}


@pytest.mark.parametrize("kind", GRADIENT_HOOKS)
def test_a_gradient_hook_on_a_tensor_that_is_replaced_is_refused_by_name(kind: str) -> None:
    model, optimizer = trained()
    called: list[Tensor] = []

    def note(tensor: Tensor) -> None:
        called.append(tensor)

    GRADIENT_HOOKS[kind](model.get_parameter("layers.0.up"), note)
    before = everything_of(model, optimizer)
    with pytest.raises(ValueError, match=r"layers\.0\.up has the gradient hook .*note"):
        grow(model, optimizer, [GrowMlp(40)])
    assert same(everything_of(model, optimizer), before)
    grow(model, optimizer, [GrowMlp(40, layers=(1,))])
    backward(model)
    assert len(called) == 1
