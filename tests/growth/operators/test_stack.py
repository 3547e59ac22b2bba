"""Stacking and interleaving: which layer is a copy of which, and together with an operator for width."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.optim import AdamW

from nasgrow.expansions import Expansion, GrowHidden, GrowMlp, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.operators import AnyOperator, Interleave, Net2Net, Preserve, Stack, WidthAndDepth
from nasgrow.params import table
from nasgrow.shape import Shape
from nasgrow.verify import PAPER
from tests.growth.snapshots import everything_of, same
from tests.steps import perturb, tokens_for, train

SHAPE = Shape.uniform(hidden=6, layers=3, mlp=5, heads=2, key=2, value=3)


def trained(shape: Shape = SHAPE) -> tuple[Transformer, AdamW]:
    model = Transformer(shape, PAPER, dtype=torch.float64)
    perturb(model)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, steps=2)
    return model, optimizer


def in_layer(model: Transformer, optimizer: AdamW, layer: int) -> dict[str, Any]:
    """Values and moments of a layer's tensors."""
    named = dict(model.named_parameters())
    entries = [entry for entry in table(model.shape, model.variant).values() if entry.layer == layer]
    return {
        entry.name.removeprefix(f"layers.{layer}."): [
            named[entry.name].detach().clone(),
            named[entry.name].grad,
            optimizer.state[named[entry.name]]["exp_avg"],
            optimizer.state[named[entry.name]]["exp_avg_sq"],
        ]
        for entry in entries
    }


@pytest.mark.parametrize("at", [(3, 3), (0, 1), (3, 3, 3), (1, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("operator", [Stack(), Interleave()], ids=lambda o: o.kind)
def test_every_layer_is_the_copy_that_the_equation_says(operator: AnyOperator, at: tuple[int, ...]) -> None:
    """c(i) = i mod N, and c(i) = floor(i N / N^); wherever the event inserts."""
    model, optimizer = trained()
    before = [copy.deepcopy(in_layer(model, optimizer, layer)) for layer in range(3)]
    modules = list(model.layers)
    grow(model, optimizer, [InsertLayers(at)], operator=operator)
    count = 3 + len(at)
    origins = [i % 3 if operator.kind == "stack" else i * 3 // count for i in range(count)]
    for layer, origin in enumerate(origins):
        assert same(in_layer(model, optimizer, layer), before[origin]), (layer, origin)
        first = origins.index(origin) == layer
        assert (model.layers[layer] is modules[origin]) == first
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}


def test_what_was_added_are_the_copies() -> None:
    model, optimizer = trained()
    growth = grow(model, optimizer, [InsertLayers((3,))], operator=Stack())
    named = {name: p.detach() for name, p in model.named_parameters()}
    assert {name.split(".")[1] for name, _ in growth.new_parts(named)} == {"3"}


def test_layers_that_are_unlike_their_source_are_refused() -> None:
    model, optimizer = trained(GrowMlp(8, layers=(2,))(SHAPE))
    with pytest.raises(ValueError, match=r"stack makes layer 3 a copy of layer 0, so it must have p=5.*p=8"):
        grow(model, optimizer, [InsertLayers((3,))], operator=Stack())


# With an operator for width

BOTH: Sequence[Expansion] = [InsertLayers((1, 3)), GrowHidden(9), GrowMlp(8)]


def test_an_event_that_grows_both_is_width_then_depth() -> None:
    pair = WidthAndDepth(width=Net2Net(), depth=Stack())
    model, optimizer = trained()
    growth = grow(model, optimizer, BOTH, seed=3, operator=pair)
    apart, other = trained()
    grow(apart, other, [GrowHidden(9), GrowMlp(8)], seed=3, operator=Net2Net())
    grow(apart, other, [InsertLayers((1, 3))], seed=3, operator=Stack())
    tokens_bs = tokens_for(PAPER)
    assert torch.equal(model(tokens_bs), apart(tokens_bs))
    for layer in range(5):
        assert same(in_layer(model, optimizer, layer), in_layer(apart, other, layer))
    assert growth.old == SHAPE
    assert growth.new == model.shape
    sizes = {name: int(p.numel()) for name, p in Transformer(SHAPE, PAPER).named_parameters()}
    added = dict.fromkeys(sizes, 0)
    for name, part in growth.new_parts({name: p.detach() for name, p in model.named_parameters()}):
        added[name] = added.get(name, 0) + part.numel()
    for name, parameter in model.named_parameters():
        assert added[name] == parameter.numel() - sizes.get(name, 0), name


def test_one_that_grows_width_alone_or_depth_alone_leaves_the_other_out() -> None:
    pair = WidthAndDepth(width=Preserve(), depth=Stack())
    for event, single in (([GrowMlp(8)], Preserve()), ([InsertLayers((3,))], Stack())):
        (model, optimizer), (other, its) = trained(), trained()
        grow(model, optimizer, event, operator=pair)
        grow(other, its, event, operator=single)
        assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_an_error_in_the_second_growth_undoes_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **options: Any) -> Any:
        raise MemoryError("no room")

    model, optimizer = trained()
    before = everything_of(model, optimizer)
    monkeypatch.setattr("nasgrow.growth.operators.stack.plan_growth", failing)
    with pytest.raises(MemoryError):
        grow(model, optimizer, BOTH, operator=WidthAndDepth(width=Preserve(), depth=Stack()))
    assert same(everything_of(model, optimizer), before)
