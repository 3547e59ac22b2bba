"""What growing refuses: each time with what was given, and with everything left as it was."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, AdamW, Optimizer

from nasgrow.errors import UserError
from nasgrow.expansions import Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.params import TensorSpec
from nasgrow.verify import BASE, PAPER
from tests.growth.snapshots import everything_of, same, trained
from tests.steps import train


def assert_refused(
    message: str,
    model: Transformer,
    optimizers: list[Optimizer],
    expansions: list[Expansion],
) -> None:
    before = everything_of(model, *optimizers)
    with pytest.raises(ValueError, match=message):
        grow(model, optimizers, expansions)
    assert same(everything_of(model, *optimizers), before)


# Arguments of the wrong kind

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "moments": ({"moments": "bogus"}, "one of fresh-new, carry, reset, not 'bogus'"),
    "moments of no type": ({"moments": ["carry"]}, "one of fresh-new, carry, reset, not ['carry']"),
    "no list of expansions": ({"expansions": 5}, "expansions must be a list, not 5"),
    "no expansions": ({"expansions": None}, "expansions must be a list, not None"),
    "an expansion's name": ({"expansions": ["mlp"]}, "'mlp' is not one of the six expansions"),
    "a number for an optimizer": ({"optimizers": 5}, "5 is not a torch optimizer"),
    "an optimizer's name": ({"optimizers": "adam"}, "'adam' is not a torch optimizer"),
    "an empty mapping": ({"optimizers": {}}, "{} is not a torch optimizer"),
    "a list with a stranger": ({"optimizers": [5]}, "5 is not a torch optimizer"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_argument_of_the_wrong_kind_is_quoted(case: str) -> None:
    given, message = WRONG[case]
    model, _ = trained()
    before = everything_of(model)
    arguments: dict[str, Any] = {"optimizers": None, "expansions": [GrowMlp(40)], **given}
    with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
        grow(model, **arguments)
    assert same(everything_of(model), before)


@pytest.mark.parametrize("powers", [5, "exp_avg", [("exp_avg", 1)]], ids=repr)
def test_state_powers_that_are_no_mapping_are_quoted(powers: Any) -> None:
    model, optimizer = trained()
    with pytest.raises(ValueError, match=f"state_powers must map names.*{re.escape(repr(powers))}$"):
        grow(model, optimizer, [GrowMlp(40)], state_powers=powers)


FREE = "layers.0.up"
FREE_SIZES = (24, 20)
BAD_VALUES: dict[str, tuple[Callable[[tuple[int, ...]], Any], str]] = {
    "numpy": (lambda sizes: np.zeros(sizes), repr(np.zeros(FREE_SIZES))),
    "a number": (lambda sizes: 0.5, "0.5"),
    "nothing": (lambda sizes: None, "None"),
    "other sizes": (lambda sizes: torch.zeros(2, 3, 5), "a tensor of (2, 3, 5)"),
    "one value for all": (lambda sizes: torch.zeros(1), "a tensor of (1,)"),
    "one row for all": (lambda sizes: torch.zeros(sizes[1:]), "a tensor of (20,)"),
    "turned round": (lambda sizes: torch.zeros(sizes[::-1]), "a tensor of (20, 24)"),
}


@pytest.mark.parametrize("case", BAD_VALUES)
def test_values_that_do_not_fill_their_box_are_refused_with_its_sizes_and_name(case: str) -> None:
    values, what = BAD_VALUES[case]

    def init(entry: TensorSpec, sizes: tuple[int, ...], generator: torch.Generator) -> Tensor:
        given: Tensor = values(sizes)
        return given

    model, optimizer = trained()
    before = everything_of(model, optimizer)
    message = str(UserError(f"init must give a tensor of {FREE_SIZES} for {FREE}, not {what}"))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        grow(model, optimizer, [GrowMlp(40, layers=(0,))], init=init)
    assert same(everything_of(model, optimizer), before)


def test_lbfgs_is_refused() -> None:
    model = Transformer(BASE, PAPER)
    assert_refused("LBFGS", model, [LBFGS(model.parameters())], [GrowMlp(40)])


# Parameters that are not those of the table


def with_extra(model: Transformer, kind: str) -> list[nn.Parameter]:
    """Hang something on the model that the table does not know; return its parameters."""
    if kind == "parameter":
        model.extra = nn.Parameter(torch.ones(24, dtype=torch.float64))
        return [model.extra]
    model.head = nn.Linear(24, 3, dtype=torch.float64)
    return list(model.head.parameters())


@pytest.mark.parametrize("kind", ["parameter", "module"])
@pytest.mark.parametrize("own_group", [False, True])
def test_what_hangs_on_the_model_is_kept_with_its_state_and_group(kind: str, own_group: bool) -> None:
    model = Transformer(BASE, PAPER, dtype=torch.float64)
    rest = list(model.parameters())
    extra = with_extra(model, kind)
    apart: list[dict[str, Any]] = [{"params": extra, "lr": 0.5}, {"params": rest}]
    groups = apart if own_group else [{"params": rest + extra}]
    optimizer = AdamW(groups, lr=1e-2)
    for parameter in extra:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    train(model, optimizer, steps=1)
    before = copy.deepcopy([(p.detach(), optimizer.state[p]) for p in extra])
    assert all("exp_avg" in state for _, state in before)
    grow(model, optimizer, [GrowHidden(48), InsertLayers((0,))])
    assert same([(p.detach(), optimizer.state[p]) for p in extra], before)
    assert {id(p) for p in extra} <= {id(p) for p in model.parameters()}
    home = optimizer.param_groups[0]
    assert [id(p) for p in home["params"][-len(extra) :]] == [id(p) for p in extra]
    assert home["lr"] == (0.5 if own_group else 1e-2)
    assert len(home["params"]) == (len(extra) if own_group else len(list(model.parameters())))
    train(model, optimizer, steps=1)


@pytest.mark.parametrize("place", ["layers.1", "layers.0.heads.1", "layers"])
def test_a_parameter_added_to_a_layer_is_refused_by_name(place: str) -> None:
    model, optimizer = trained()
    model.get_submodule(place).register_parameter("scale", nn.Parameter(torch.ones(2)))
    name = re.escape(f"{place}.scale")
    assert_refused(f"{name} was added to a layer", model, [optimizer], [GrowMlp(40)])


def test_a_parameter_shared_by_two_layers_is_refused() -> None:
    model = Transformer(BASE, PAPER)
    model.layers[1].register_parameter("mlp_norm", model.get_parameter("layers.0.mlp_norm"))
    optimizer = AdamW(model.parameters())
    assert_refused(
        r"layers\.0\.mlp_norm and layers\.1\.mlp_norm are one shared", model, [optimizer], [GrowHidden(48)]
    )


def test_a_missing_parameter_is_refused() -> None:
    model, optimizer = trained()
    del model.layers[0].down_bias
    assert_refused(r"layers\.0\.down_bias is missing", model, [optimizer], [GrowMlp(40)])


@pytest.mark.parametrize("sizes", [(24, 19), (20, 24), (480,), (24, 20, 1)], ids=str)
def test_a_tensor_of_the_wrong_shape_is_refused_with_both(sizes: tuple[int, ...]) -> None:
    model = Transformer(BASE, PAPER)
    model.layers[0].register_parameter("up", nn.Parameter(torch.zeros(sizes)))
    optimizer = AdamW(model.parameters())
    message = re.escape(f"layers.0.up is {sizes}, not (24, 20)")
    assert_refused(message, model, [optimizer], [GrowMlp(40)])


# Head groups that become one

MERGE: list[Expansion] = [GrowKeys(8, layers=(0,)), GrowValues(8, layers=(0,))]
ODD = "layers.0.heads.1.key"
BOTH = r"layers\.0\.heads\.0\.key and layers\.0\.heads\.1\.key"


def rest_of(model: Transformer) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if name != ODD]


def frozen(model: Transformer) -> list[Optimizer]:
    model.get_parameter(ODD).requires_grad_(False)
    return [AdamW(model.parameters(), lr=1e-2)]


def in_another_group(model: Transformer) -> list[Optimizer]:
    apart: dict[str, Any] = {"params": [model.get_parameter(ODD)], "lr": 0.0}
    return [AdamW([{"params": rest_of(model)}, apart], lr=1e-2)]


def in_another_optimizer(model: Transformer) -> list[Optimizer]:
    return [AdamW(rest_of(model), lr=1e-2), SGD([model.get_parameter(ODD)], lr=1e-2)]


def in_no_optimizer(model: Transformer) -> list[Optimizer]:
    return [AdamW(rest_of(model), lr=1e-2)]


UNLIKE: Mapping[str, Callable[[Transformer], list[Optimizer]]] = {
    "frozen": frozen,
    "in another group": in_another_group,
    "in another optimizer": in_another_optimizer,
    "in no optimizer": in_no_optimizer,
}


@pytest.mark.parametrize("case", UNLIKE)
def test_head_groups_that_are_trained_differently_do_not_merge(case: str) -> None:
    model = Transformer(BASE, PAPER)
    optimizers = UNLIKE[case](model)
    train(model, optimizers, steps=2)
    assert_refused(BOTH, model, optimizers, MERGE)
    grow(model, optimizers, [GrowValues(9, layers=(0,))])
    assert len(model.shape.layers[0].groups) == 2


def test_head_groups_of_different_dtypes_do_not_merge() -> None:
    model = Transformer(BASE, PAPER)
    odd = nn.Parameter(model.get_parameter(ODD).detach().double())
    model.get_submodule("layers.0.heads.1").register_parameter("key", odd)
    assert_refused(BOTH, model, [AdamW(model.parameters())], MERGE)


def test_head_groups_that_are_trained_alike_merge() -> None:
    model = Transformer(BASE, PAPER)
    optimizer = AdamW(model.parameters())
    train(model, optimizer, steps=2)
    grow(model, optimizer, MERGE)
    assert len(model.shape.layers[0].groups) == 1


def test_a_tensor_shared_with_another_module_is_refused() -> None:
    model = Transformer(BASE, PAPER)
    model.head = nn.Linear(24, 29, bias=False)
    model.head.weight = model.embedding
    with pytest.raises(ValueError, match=r"embedding and head\.weight are one shared parameter"):
        grow(model, None, [GrowHidden(48)])


@pytest.mark.parametrize("powers", [5, {"smooth": "x"}])
def test_powers_that_are_none_are_refused_without_an_optimizer_too(powers: object) -> None:
    with pytest.raises(ValueError, match="state_powers must map names to integer powers"):
        grow(Transformer(BASE, PAPER), None, [GrowMlp(40)], state_powers=powers)  # type: ignore[arg-type]
