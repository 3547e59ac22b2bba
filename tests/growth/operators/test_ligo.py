"""LiGO: the map as its equation says, where it starts, that it learns, and what that costs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.optim import AdamW

from nasgrow.expansions import (
    AddHeads,
    Expansion,
    GrowHidden,
    GrowKeys,
    GrowMlp,
    GrowValues,
    InsertLayers,
    expand,
)
from nasgrow.flops import step_flops
from nasgrow.growth import grow
from nasgrow.growth.operators.contract import Situation
from nasgrow.growth.operators.ligo import Map
from nasgrow.model import Transformer, fresh, generator_for
from nasgrow.operators import GradMax, Ligo, WidthAndDepth
from nasgrow.operators.cost import map_flops
from nasgrow.shape import HeadGroup, Layer, Shape, Variant
from nasgrow.verify import BASE, EXPANSIONS, LIMITS, PAPER, VARIANTS
from tests.growth.operators.counting import counted_flops
from tests.steps import perturb, tokens_for, train

SHAPE = Shape.uniform(hidden=6, layers=2, mlp=5, heads=2, key=4, value=3)
WIDTH: list[Expansion] = [GrowHidden(9), GrowMlp(12), GrowKeys(6), GrowValues(5), AddHeads(3)]


def batch(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    first_bs = torch.randint(PAPER.vocab, (3, PAPER.context), generator=generator)
    return torch.cat((first_bs, (first_bs[:, -1:] * 5 + 1) % PAPER.vocab), 1)


def model_of(variant: Variant = PAPER, shape: Shape = SHAPE) -> Transformer:
    model = Transformer(shape, variant, dtype=torch.float64)
    perturb(model)
    return model


def map_of(model: Transformer, event: list[Expansion]) -> Map:
    new, lineage = expand(model.shape, event)
    parameters = dict(model.named_parameters())
    return Map.start(
        Situation(
            model.shape, new, lineage, model.variant, parameters, fresh, lambda n: generator_for(0, n), None
        )
    )


def test_every_tensor_is_the_factorised_map_of_the_old_ones() -> None:
    """A W B^T with shared A and B, then the weighted sum over old layers."""
    model = model_of()
    found = map_of(model, [*WIDTH, InsertLayers((2,))])
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in found.learned:
            tensor.copy_(torch.randn(tensor.shape, generator=random, dtype=tensor.dtype))
        new = {name: tensor.numpy() for name, tensor in found().items()}
    old = {name: p.detach().numpy() for name, p in model.named_parameters()}
    m = {place: tensor.detach().numpy() for place, tensor in found.matrices.items()}
    w = {role: tensor.detach().numpy() for role, tensor in found.depth.items()}
    b = m["h", None]
    np.testing.assert_allclose(new["embedding"], old["embedding"] @ b.T, rtol=1e-12)
    np.testing.assert_allclose(new["output"], b @ old["output"], rtol=1e-12)
    copies_p, copies_h = np.array([3, 3, 2, 2, 2]), np.array([2, 2, 2, 1, 1, 1])
    for i in range(3):
        up = sum(w["up"][i, j] * b @ old[f"layers.{j}.up"] @ m["p", j].T for j in (0, 1))
        np.testing.assert_allclose(new[f"layers.{i}.up"], up, rtol=1e-10)
        shares = 1 / copies_p[np.arange(12) % 5]
        down = sum(
            w["down"][i, j] * (shares[:, None] * m["p", j]) @ old[f"layers.{j}.down"] @ b.T for j in (0, 1)
        )
        np.testing.assert_allclose(new[f"layers.{i}.down"], down, rtol=1e-10)
        for role, axis in (("query", "Q"), ("key", "K"), ("value", "V")):
            made = sum(w[role][i, j] * b @ old[f"layers.{j}.heads.0.{role}"] @ m[axis, j].T for j in (0, 1))
            np.testing.assert_allclose(new[f"layers.{i}.heads.0.{role}"], made, rtol=1e-10)
        # The three heads start from heads 0, 1, 0, and the five values of each from values 0, 1, 2, 0, 1.
        head, unit = np.divmod(np.arange(15), 5)
        shares = 1 / (np.array([2, 1, 2])[head] * np.array([2, 2, 1])[unit % 3])
        out = sum(
            w["out"][i, j] * (shares[:, None] * m["V", j]) @ old[f"layers.{j}.heads.0.out"] @ b.T
            for j in (0, 1)
        )
        np.testing.assert_allclose(new[f"layers.{i}.heads.0.out"], out, rtol=1e-10)
        beside = np.sqrt(copies_h[np.arange(9) % 6] * 6 / 9)
        gain = sum(w["mlp_norm"][i, j] * beside * (b @ old[f"layers.{j}.mlp_norm"]) for j in (0, 1))
        np.testing.assert_allclose(new[f"layers.{i}.mlp_norm"], gain, rtol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_width_it_starts_at_the_old_function(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise and before any step: net2net's copies, of unequal layers and heads too."""
    monkeypatch.setattr("nasgrow.growth.operators.ligo.NOISE", 0)
    event: list[Expansion] = [e for e in EXPANSIONS["everything"] if not isinstance(e, InsertLayers)]
    model = model_of(VARIANTS[variant], BASE)
    grown = Transformer(expand(BASE, event)[0], VARIANTS[variant], dtype=torch.float64)
    tokens_bs = tokens_for(PAPER)
    with torch.no_grad():
        grown.load_state_dict(map_of(model, event)())
        before, after = model(tokens_bs), grown(tokens_bs)
    assert float((after - before).abs().max() / before.abs().max()) <= LIMITS["float64"]


def test_in_depth_it_starts_as_a_stack() -> None:
    model = model_of()
    made = map_of(model, [InsertLayers((0, 1, 2))])()
    for layer in range(5):
        for role in ("up", "down_bias", "heads.0.out", "attention_norm"):
            old = model.get_parameter(f"layers.{layer % 2}.{role}").detach()
            assert torch.equal(made[f"layers.{layer}.{role}"].detach(), old)


def test_new_heads_start_from_old_ones_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turn the first new head would copy a head whose key is larger than its own, and not be exact."""
    monkeypatch.setattr("nasgrow.growth.operators.ligo.NOISE", 0)
    unequal = Shape(6, (Layer(5, (HeadGroup(1, 6, 3), HeadGroup(1, 2, 3))),))
    event: list[Expansion] = [AddHeads(4, key=4, value=5)]
    model = model_of(shape=unequal)
    grown = Transformer(expand(unequal, event)[0], PAPER, dtype=torch.float64)
    tokens_bs = tokens_for(PAPER)
    with torch.no_grad():
        grown.load_state_dict(map_of(model, event)())
        torch.testing.assert_close(grown(tokens_bs), model(tokens_bs), rtol=1e-12, atol=1e-13)
    assert map_of(model, [AddHeads(3, key=1, value=1)])()["layers.0.heads.2.key"].shape == (6, 1)


EVENTS: dict[str, list[Expansion]] = {
    "width": WIDTH,
    "both": [*WIDTH, InsertLayers((1,))],
    "mlp": [GrowMlp(9)],
    "one mlp": [GrowMlp(9, layers=(1,))],
    "heads": [AddHeads(4, layers=(1,))],
    "layers": [InsertLayers((2, 2))],
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("variant", ["paper", "modern", "norm after"])
def test_what_is_charged_is_what_is_spent(variant: str, event: str) -> None:
    """Gradients that no map needs are neither."""
    operator = Ligo(steps=2)
    charged = operator.flops(SHAPE, EVENTS[event], VARIANTS[variant], 3)
    for at_once in (None, 1) if event == "both" else (2,):
        spent = counted_flops(operator, model_of(VARIANTS[variant]), EVENTS[event], batch, at_once)
        assert spent == charged
    new = expand(SHAPE, EVENTS[event])[0]
    whole = operator.steps * step_flops(new, VARIANTS[variant], 3)
    once, learning = map_flops(SHAPE, new, VARIANTS[variant])
    assert (charged == whole + operator.steps * learning + once) == (event in ("width", "both"))


def loss_of(model: Transformer, numbers: range) -> float:
    with torch.no_grad():
        losses = [
            F.cross_entropy(model(batch(n)[:, :-1]).flatten(0, 1), batch(n)[:, 1:].flatten()) for n in numbers
        ]
    return float(torch.stack(losses).mean())


def test_the_map_learns_and_leaves_no_copies() -> None:
    """The loss on its batches falls with its steps, and no two units of the grown model are parallel."""
    losses = {}
    for steps in (1, 40):
        model = model_of()
        grow(model, None, EVENTS["both"], operator=Ligo(steps=steps, learning_rate=0.01), batches=batch)
        losses[steps] = loss_of(model, range(40))
    assert losses[40] < 0.9 * losses[1]
    for name in ("embedding", "layers.0.up", "layers.2.heads.0.query"):
        unit = F.normalize(model.get_parameter(name).detach(), dim=0)
        assert (unit.T @ unit).abs().fill_diagonal_(0).max() < 1 - 1e-9


def test_the_parts_of_a_batch_teach_what_the_batch_teaches() -> None:
    models = [model_of() for _ in range(2)]
    for model, at_once in zip(models, (None, 2), strict=True):
        grow(model, None, EVENTS["both"], operator=Ligo(steps=3), batches=batch, at_once=at_once)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_the_second_of_two_learners_goes_on_where_the_first_stopped() -> None:
    seen = []

    def told(number: int) -> Tensor:
        seen.append(number)
        return batch(number)

    pair = WidthAndDepth(width=GradMax(), depth=Ligo(steps=3))
    grow(model_of(), None, [GrowMlp(9), InsertLayers((2,))], operator=pair, batches=told)
    assert seen == [0, 1, 2, 3]


def test_optimizer_state_starts_anew() -> None:
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, steps=2)
    grow(model, optimizer, [GrowMlp(9)], operator=Ligo(steps=1), batches=batch)
    assert not optimizer.state
    train(model, optimizer, steps=1)
    assert {int(state["step"]) for state in optimizer.state.values()} == {1}


def test_what_it_needs_and_cannot_do_is_said() -> None:
    with pytest.raises(ValueError, match="operator ligo learns from batches, and none were given"):
        grow(model_of(), None, [GrowMlp(9)], operator=Ligo())
    unequal = model_of(PAPER, GrowMlp(8, layers=(1,))(SHAPE))
    with pytest.raises(ValueError, match=r"ligo mixes layers .* before the event there are p=5.* and p=8"):
        grow(unequal, None, [InsertLayers((1,))], operator=Ligo(), batches=batch)
    with pytest.raises(ValueError, match=r"ligo mixes layers .* after the event"):
        grow(model_of(), None, [InsertLayers((1,)), GrowMlp(9, layers=(1,))], operator=Ligo(), batches=batch)
