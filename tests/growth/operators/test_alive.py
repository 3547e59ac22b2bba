"""After a little training nothing that an operator added is dead, and no two units are alike.

Copies that get equal gradients are one unit for ever, and training here has no dropout that would part them.
Units count as alike if, in every tensor that holds them, their values are the same up to order, signs and a
factor: a mirror image, a share, or the same unit in another copy of the model does the same work.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

from nasgrow.expansions import (
    EXPANSION_TYPES,
    AddHeads,
    Expansion,
    GrowHidden,
    GrowKeys,
    GrowMlp,
    GrowValues,
    InsertLayers,
)
from nasgrow.growth import grow
from nasgrow.growth.masks import masked
from nasgrow.model import Transformer
from nasgrow.operators import (
    OPERATORS,
    Bert2Bert,
    Fusion,
    HyperClone,
    Net2Net,
    Operator,
    Preserve,
    Staged,
)
from nasgrow.params import table
from nasgrow.shape import HeadGroup, Layer, Shape
from nasgrow.verify import PAPER, VARIANTS
from tests.growth.operators.cases import SHORT, batches, ids
from tests.steps import backward, tokens_for, train

SHAPE = Shape.uniform(hidden=6, layers=2, mlp=8, heads=2, key=2, value=2)
TRIPLED: Mapping[str, Expansion] = {
    "hidden": GrowHidden(18),
    "layers": InsertLayers((2, 2)),
    "mlp": GrowMlp(24),
    "key": GrowKeys(6),
    "value": GrowValues(6),
    "heads": AddHeads(6),
}
"""More than doubled, so that copies have copies; and more MLP units than twice the hidden size are new."""
OPTIONS = [Preserve(new="paired"), Preserve(new="split"), Bert2Bert(init="fpi")]
CASES = [*(SHORT.get(name) or cls() for name, cls in OPERATORS.items()), *OPTIONS]  # type: ignore[call-arg]
STEPS = 20
ALIKE = 1e-6
"""The largest distance of two directions that count as one."""


def events(operator: Operator) -> Iterator[tuple[str, list[Expansion]]]:
    """Every expansion that it can do alone."""
    kinds = [kind for kind in EXPANSION_TYPES if kind in operator.grows]
    if operator.whole_width:
        yield "width", [TRIPLED[kind] for kind in kinds if kind != "layers"]
        kinds = [kind for kind in kinds if kind == "layers"]
    for kind in kinds:
        yield kind, [TRIPLED[kind]]


@cache
def trained(variant: str) -> tuple[Transformer, AdamW]:
    model = Transformer(SHAPE, VARIANTS[variant], dtype=torch.float64)
    optimizer = AdamW(model.parameters(), lr=1e-2, weight_decay=0)
    train(model, optimizer, steps=3)
    return model, optimizer


@pytest.mark.parametrize("variant", ["paper", "gated", "norm after"])
@pytest.mark.parametrize(
    ("operator", "event"),
    [pytest.param(case, event, id=f"{ids(case)}: {name}") for case in CASES for name, event in events(case)],
)
def test_nothing_stays_dead_or_alike(operator: Operator, event: list[Expansion], variant: str) -> None:
    model, optimizer = copy.deepcopy(trained(variant))
    growth = grow(model, optimizer, event, operator=operator, batches=batches)
    before = [part.clone() for _, part in growth.new_parts(dict(model.named_parameters()))]
    for step in range(STEPS):
        with masked(model, growth.masks, (step + 0.5) / STEPS, gradients=True):
            backward(model, 3 + step)
        optimizer.step()
    after = list(growth.new_parts(dict(model.named_parameters())))
    assert after
    for old, (name, new) in zip(before, after, strict=True):
        assert (new != old).all(), f"some of what is new in {name} has not moved"
        assert new.all(), f"some of what is new in {name} is zero"
    assert not list(alike(model))


@pytest.mark.parametrize(
    "operator",
    [Net2Net(noise=0), Bert2Bert(init="fpi", noise=0), HyperClone(noise=0), Fusion(noise=0), Staged(noise=0)],
    ids=ids,
)
def test_copies_that_nothing_parts_are_found(operator: Operator) -> None:
    """So the test above would find them."""
    model, optimizer = copy.deepcopy(trained("paper"))
    grow(model, optimizer, [TRIPLED[kind] for kind in ("hidden", "mlp", "heads")], operator=operator)
    train(model, optimizer, steps=5, first=3)
    assert {place.partition(":")[0] for place in alike(model)} >= {"h", "p of layer 0", "E of layer 1"}


@pytest.mark.parametrize("operator", [Bert2Bert(init="fpi"), HyperClone()], ids=ids)
def test_copies_of_heads_that_are_in_another_tensor_part_too(operator: Operator) -> None:
    """The noise cancels over two tensors, as the copy of the first head is in another group than itself."""
    shape = Shape(6, (Layer(8, (HeadGroup(1, 2, 2), HeadGroup(1, 2, 3))),))
    model = Transformer(shape, PAPER, dtype=torch.float64)
    optimizer = AdamW(model.parameters(), lr=1e-2, weight_decay=0)
    train(model, optimizer, steps=3)
    tokens_bs = tokens_for(PAPER)
    before = model(tokens_bs).detach()
    grow(model, optimizer, [AddHeads(3, key=2, value=2), AddHeads(4, key=2, value=3)], operator=operator)
    torch.testing.assert_close(model(tokens_bs).detach(), before, rtol=1e-12, atol=1e-13)
    assert model.shape.layers[0].groups == shape.layers[0].groups * 2
    train(model, optimizer, steps=5, first=3)
    for first, second in ((0, 2), (1, 3)):
        one, other = (model.get_parameter(f"layers.0.heads.{group}.query") for group in (first, second))
        assert (one - other).abs().max() > 1e-6


def alike(model: Transformer) -> Iterator[str]:
    """Names the pairs of units, heads and layers that are the same up to factors."""
    held: dict[str, list[Tensor]] = {}
    entries = table(model.shape, model.variant)
    tensors = {name: model.get_parameter(name).detach().view(e.sizes) for name, e in entries.items()}
    for name, entry in entries.items():
        for axis in set(entry.axes) & {"h", "p", "E"}:
            owner = "h" if axis == "h" else f"{axis} of layer {entry.layer}"
            held.setdefault(owner, []).append(rows(tensors[name], entry.axes.index(axis)))
        for axis in set(entry.axes) & {"k", "v"}:
            at = [other for other in entry.axes if other != "E"].index(axis)
            for head, values in enumerate(tensors[name].movedim(entry.axes.index("E"), 0)):
                held.setdefault(f"{axis} of layer {entry.layer}, head {head}", []).append(rows(values, at))
    layers = [[t for n, t in tensors.items() if entries[n].layer == i] for i in range(len(model.layers))]
    held["layers"] = [torch.stack(same).flatten(1) for same in zip(*layers, strict=True)]
    for place, parts in held.items():
        apart = torch.stack([distances(part) for part in parts]).amax(0)
        for one, other in (apart <= ALIKE).nonzero():
            if one < other:
                yield f"{place}: {one} and {other}"


def rows(tensor: Tensor, axis: int) -> Tensor:
    """The slices of a tensor along an axis, one in each row."""
    return tensor.movedim(axis, 0).reshape(tensor.shape[axis], -1)


def distances(units: Tensor) -> Tensor:
    """Of all pairs of rows, as directions, whatever the order and the signs of their values."""
    along = torch.nn.functional.normalize(units, dim=1).abs().sort(1).values
    apart: Tensor = (along[:, None] - along[None]).norm(dim=-1)
    return apart
