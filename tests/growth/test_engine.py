"""The engine: what it keeps, what it refuses, and that a refusal changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Muon

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Initialiser, Transformer, fresh
from nasgrow.params import TensorSpec, table
from nasgrow.shape import Variant
from nasgrow.verify import BASE, EXPANSIONS, PAPER
from tests.growth.snapshots import everything_of, same, trained
from tests.steps import backward, tokens_for, train


def failing_init(entry: TensorSpec, sizes: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if entry.name == "layers.1.up":
        raise MemoryError("no room")
    return torch.zeros(sizes)


@pytest.mark.parametrize(
    ("expansions", "options", "error"),
    [
        ([GrowMlp(40), GrowHidden(8)], {}, ValueError),
        ([GrowMlp(40, layers=(7,))], {}, ValueError),
        ([GrowKeys(12, heads=(9,))], {}, ValueError),
        (["mlp"], {}, ValueError),
        ([GrowMlp(40)], {"moments": "keep"}, ValueError),
        ([GrowMlp(40)], {"init": failing_init}, MemoryError),
        ([GrowMlp(40)], {"init": lambda entry, sizes, generator: torch.zeros(2, 3, 5)}, ValueError),
    ],
)
def test_an_error_leaves_everything_as_it_was(
    expansions: Sequence[Expansion], options: dict[str, Any], error: type[Exception]
) -> None:
    model, optimizer = trained()
    before = everything_of(model, optimizer)
    with pytest.raises(error):
        grow(model, optimizer, expansions, **options)
    assert same(everything_of(model, optimizer), before)


def test_an_error_in_the_optimizer_state_leaves_everything_as_it_was() -> None:
    model, optimizer = trained()
    optimizer.state[model.get_parameter("layers.1.down")]["exp_avg"] = torch.zeros(5)
    before = everything_of(model, optimizer)
    with pytest.raises(ValueError, match=r"exp_avg.*layers\.1\.down"):
        grow(model, optimizer, [GrowMlp(40)])
    assert same(everything_of(model, optimizer), before)


def test_keys_that_rope_cannot_turn_are_refused() -> None:
    model, optimizer = trained(replace(PAPER, positions="rope"))
    with pytest.raises(ValueError, match=r"layer 0.*even, not 9"):
        grow(model, optimizer, [GrowKeys(9)])


def test_a_model_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ValueError, match="nasgrow Transformer, not a Linear"):
        grow(nn.Linear(2, 2), None, [GrowMlp(40)])  # type: ignore[arg-type]


def test_an_optimizer_of_something_else_is_refused() -> None:
    model, _ = trained()
    other = SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="SGD holds none of this model's parameters"):
        grow(model, other, [GrowMlp(40)])
    with pytest.raises(ValueError, match="'adam' is not a torch optimizer"):
        grow(model, ["adam"], [GrowMlp(40)])  # type: ignore[list-item]


def test_a_parameter_of_two_optimizers_is_refused() -> None:
    model, optimizer = trained()
    with pytest.raises(ValueError, match="embedding is held by two optimizers"):
        grow(model, [optimizer, SGD([model.embedding], lr=0.1)], [GrowMlp(40)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dtype_and_identity_are_kept(dtype: torch.dtype) -> None:
    model = Transformer(BASE, PAPER, dtype=dtype)
    optimizer = AdamW(model.parameters())
    train(model, optimizer, steps=1)
    grow(model, optimizer, EXPANSIONS["everything"])
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert {s["exp_avg"].dtype for s in optimizer.state.values()} == {dtype}
    train(model, optimizer, steps=1)


def test_tensors_that_do_not_grow_are_not_touched() -> None:
    model, optimizer = trained()
    before = {name: id(p) for name, p in model.named_parameters()}
    state = optimizer.state[model.embedding]
    grow(model, optimizer, [GrowMlp(40, layers=(0,)), InsertLayers((0,))])
    after = {name: id(p) for name, p in model.named_parameters()}
    moved = {"layers.1.up", "layers.1.up_bias", "layers.1.down"}
    for name, identity in before.items():
        shifted = name.replace("layers.1", "layers.2").replace("layers.0", "layers.1")
        assert (after[shifted] == identity) == (shifted not in moved), name
    assert optimizer.state[model.embedding] is state


def test_frozen_parameters_stay_frozen_and_out_of_the_optimizer() -> None:
    model = Transformer(BASE, PAPER)
    model.embedding.requires_grad_(False)
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad])
    train(model, optimizer, steps=1)
    grow(model, optimizer, [GrowHidden(48)])
    assert not model.embedding.requires_grad
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters() if p.requires_grad}


def test_parameter_groups_keep_their_settings_and_take_in_new_tensors_of_their_kind() -> None:
    model = Transformer(BASE, PAPER)
    entries = table(model.shape, model.variant)
    named = dict(model.named_parameters())
    groups = [
        {"params": [named[n] for n, e in entries.items() if e.row.decays], "weight_decay": 0.1, "lr": 2e-3},
        {"params": [named[n] for n, e in entries.items() if not e.row.decays], "weight_decay": 0.0},
    ]
    optimizer = AdamW(groups, lr=1e-3)
    grow(model, optimizer, [InsertLayers((0, 2)), AddHeads(6, key=2, value=2), GrowHidden(30)])
    entries = table(model.shape, model.variant)
    for group, decays in zip(optimizer.param_groups, (True, False), strict=True):
        held = {id(p) for p in group["params"]}
        assert held == {id(p) for n, p in model.named_parameters() if entries[n].row.decays == decays}
        assert group["lr"] == (2e-3 if decays else 1e-3)
        assert group["weight_decay"] == (0.1 if decays else 0.0)


def test_muon_and_adamw_grow_together() -> None:
    model = Transformer(BASE, PAPER)
    muon = Muon([p for p in model.parameters() if p.dim() == 2], lr=1e-2)
    adamw = AdamW([p for p in model.parameters() if p.dim() == 1], lr=1e-2)
    train(model, [muon, adamw], steps=3)
    grow(model, [muon, adamw], EXPANSIONS["everything"])
    assert {p.dim() for group in muon.param_groups for p in group["params"]} == {2}
    assert {p.dim() for group in adamw.param_groups for p in group["params"]} == {1}
    losses = train(model, [muon, adamw], steps=20)
    assert losses[-1] < losses[0]


def test_no_expansions_change_nothing() -> None:
    model, optimizer = trained()
    before = everything_of(model, optimizer)
    grow(model, optimizer, [])
    after = everything_of(model, optimizer)
    assert same(
        [after[key] for key in after if key != "modules"], [before[key] for key in before if key != "modules"]
    )


def grown_values(seed: int, events: Sequence[Sequence[Expansion]]) -> dict[str, Tensor]:
    model, optimizer = trained()
    for event in events:
        grow(model, optimizer, event, seed=seed)
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_the_draw_depends_on_the_seed_alone() -> None:
    event = EXPANSIONS["everything"]
    assert same(grown_values(1, [event]), grown_values(1, [event]))
    assert not torch.equal(grown_values(1, [event])["layers.0.up"], grown_values(2, [event])["layers.0.up"])


def test_free_values_can_come_from_any_callable() -> None:
    model, _ = trained()
    seen = []

    def sevens(entry: TensorSpec, sizes: tuple[int, ...], generator: torch.Generator) -> Tensor:
        seen.append(entry.role)
        return torch.full(sizes, 7.0)

    grow(model, None, [GrowMlp(40)], init=sevens)
    assert set(seen) == {"up", "up_bias"}
    assert (model.get_parameter("layers.0.up")[:, 20:] == 7).all()
    assert (model.get_parameter("layers.0.down")[20:] == 0).all()


def test_a_unit_behind_a_zero_gain_would_stay_dead() -> None:
    """The paper's table zeroes new gains, its theorem does not; a zero gain lets no gradient by."""

    def zero_gains(entry: TensorSpec, sizes: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.zeros(sizes) if "norm" in entry.role else fresh(entry, sizes, generator)

    def gradient_of_new_rows(init: Initialiser) -> float:
        model, _ = trained()
        grow(model, None, [GrowHidden(48)], init=init)
        optimizer = SGD(model.parameters(), lr=1e-2)
        train(model, optimizer, steps=1)
        backward(model)
        gradient = model.get_parameter("layers.0.up").grad
        assert gradient is not None
        return float(gradient[24:].norm())

    assert gradient_of_new_rows(fresh) > 0
    assert gradient_of_new_rows(zero_gains) == 0


def test_a_copy_of_a_grown_model_is_a_model() -> None:
    model, _ = trained()
    grow(model, None, EXPANSIONS["everything"])
    twin = copy.deepcopy(model)
    tokens_bs = tokens_for(model.variant)
    assert torch.equal(twin(tokens_bs), model(tokens_bs))
    grow(twin, None, [GrowValues(20)])
    assert model.shape != twin.shape


@pytest.mark.parametrize("variant", [PAPER, replace(PAPER, positions="rope")], ids=lambda v: v.positions)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_what_is_grown_in_any_gradient_mode_trains_alike(
    mode: Callable[[], AbstractContextManager[Any]], variant: Variant
) -> None:
    (usual, plain), (model, optimizer) = trained(variant), trained(variant)
    grow(usual, plain, EXPANSIONS["everything"])
    with mode():
        grow(model, optimizer, EXPANSIONS["everything"])
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())
    losses = train(model, optimizer, steps=10)
    assert losses == train(usual, plain, steps=10)
    assert losses[-1] < losses[0]
