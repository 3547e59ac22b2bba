"""Parameter groups: who is in them, in which order, before and after growing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from nasgrow.expansions import Expansion, GrowHidden, GrowMlp, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.params import table
from nasgrow.verify import BASE, EXPANSIONS, PAPER
from tests.steps import train


def ids(parameters: Any) -> list[int]:
    return [id(parameter) for parameter in parameters]


def probe() -> nn.Linear:
    """A module of someone else's, trained along with the model."""
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        linear.bias.zero_()
    return linear


@pytest.mark.parametrize("named", [False, True])
def test_parameters_of_other_modules_stay_where_they_are(named: bool) -> None:
    model, first, last = Transformer(BASE, PAPER), probe(), probe()
    members = [
        *((f"first.{name}", p) for name, p in first.named_parameters()),
        *model.named_parameters(),
        *((f"last.{name}", p) for name, p in last.named_parameters()),
    ]
    optimizer = AdamW(members if named else [parameter for _, parameter in members])
    grow(model, optimizer, EXPANSIONS["everything"])
    (group,) = optimizer.param_groups
    assert ids(group["params"]) == ids([*first.parameters(), *model.parameters(), *last.parameters()])
    if named:
        names = [name for name, _ in model.named_parameters()]
        assert group["param_names"] == ["first.weight", "first.bias", *names, "last.weight", "last.bias"]


def test_parameters_of_other_modules_in_between_come_after() -> None:
    model, between = Transformer(BASE, PAPER), probe()
    ours = list(model.parameters())
    optimizer = AdamW([*ours[:3], *between.parameters(), *ours[3:]])
    grow(model, optimizer, [GrowMlp(40)])
    assert ids(optimizer.param_groups[0]["params"]) == ids([*model.parameters(), *between.parameters()])


def in_groups(model: Transformer, other: nn.Module) -> AdamW:
    """Three groups: what weight decay applies to, backwards; what it does not; another module's."""
    entries = table(model.shape, model.variant)
    decays = [p for name, p in model.named_parameters() if entries[name].row.decays]
    rest = [p for name, p in model.named_parameters() if not entries[name].row.decays]
    return AdamW([{"params": decays[::-1]}, {"params": rest}, {"params": list(other.parameters())}])


@pytest.mark.parametrize(
    ("expansions", "untouched"),
    [
        ([], {0, 1, 2}),
        ([GrowMlp(40)], {2}),
        ([GrowHidden(48)], {2}),
        ([InsertLayers((1,))], {2}),
    ],
    ids=str,
)
def test_a_group_in_which_nothing_changes_is_left_alone(
    expansions: list[Expansion], untouched: set[int]
) -> None:
    model = Transformer(BASE, PAPER)
    optimizer = in_groups(model, probe())
    before = [(group["params"], ids(group["params"])) for group in optimizer.param_groups]
    grow(model, optimizer, expansions)
    after = [(group["params"], ids(group["params"])) for group in optimizer.param_groups]
    same = {i for i, (a, b) in enumerate(zip(after, before, strict=True)) if a[0] is b[0] and a[1] == b[1]}
    assert same == untouched


def test_a_group_of_tensors_that_do_not_grow_is_left_alone_when_others_do() -> None:
    model = Transformer(BASE, PAPER)
    upper = list(model.layers[1].parameters())
    rest = [p for p in model.parameters() if id(p) not in ids(upper)]
    optimizer = AdamW([{"params": upper[::-1]}, {"params": rest}])
    held = optimizer.param_groups[0]["params"]
    before = ids(held)
    grow(model, optimizer, [GrowMlp(40, layers=(0,))])
    assert optimizer.param_groups[0]["params"] is held
    assert ids(held) == before
    assert sorted(before + ids(optimizer.param_groups[1]["params"])) == sorted(ids(model.parameters()))


def step(model: Transformer, other: nn.Linear, optimizer: Optimizer, first: int, count: int) -> None:
    for number in range(first, first + count):
        for parameter in other.parameters():
            parameter.grad = torch.full_like(parameter, number + 1.0)
        train(model, optimizer, steps=1, first=number)


def test_continuing_equals_saving_loading_and_continuing_with_another_module_first() -> None:
    model, other = Transformer(BASE, PAPER), probe()
    optimizer = AdamW([*other.parameters(), *model.parameters()], lr=1e-2)
    step(model, other, optimizer, 0, 3)
    grow(model, optimizer, EXPANSIONS["everything"])
    step(model, other, optimizer, 3, 2)
    saved = copy.deepcopy((model.state_dict(), other.state_dict(), optimizer.state_dict()))
    step(model, other, optimizer, 5, 3)

    loaded, loaded_other = Transformer(model.shape, PAPER, seed=9), probe()
    loaded_optimizer = AdamW([*loaded_other.parameters(), *loaded.parameters()], lr=1e-2)
    loaded.load_state_dict(saved[0])
    loaded_other.load_state_dict(saved[1])
    loaded_optimizer.load_state_dict(saved[2])
    step(loaded, loaded_other, loaded_optimizer, 5, 3)
    assert not torch.equal(other.weight, probe().weight)
    assert torch.equal(loaded_other.weight, other.weight)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name)), name


def test_names_follow_where_layers_move_and_no_parameter_changes() -> None:
    model = Transformer(BASE, PAPER)
    named = list(model.named_parameters())
    groups = [
        {"params": [(n, p) for n, p in named if not n.startswith("layers.1.")]},
        {"params": [(n, p) for n, p in named if n.startswith("layers.1.")]},
    ]
    optimizer = AdamW(groups)
    held = list(optimizer.param_groups[1]["params"])
    grow(model, optimizer, [InsertLayers((0,))])
    group = optimizer.param_groups[1]
    assert [id(p) for p in group["params"]] == [id(p) for p in held]
    for name, parameter in zip(group["param_names"], group["params"], strict=True):
        assert name.startswith("layers.2.")
        assert model.get_parameter(name) is parameter
