"""GradMax: the gradient that its equation promises, larger than others', and what finding it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowMlp, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.operators import GradMax, Preserve
from nasgrow.shape import Shape, Variant
from nasgrow.verify import PAPER, VARIANTS
from tests.growth.operators.counting import counted_flops
from tests.steps import perturb, tokens_for, train

SHAPE = Shape.uniform(hidden=6, layers=2, mlp=5, heads=2, key=2, value=2)
SLOPES = {"paper": 1.0, "norm after": 1.0, "gelu": 0.5, "silu": 0.5}
NEW = 4


def batch(number: int) -> Tensor:
    generator = torch.Generator(device="cpu").manual_seed(number)
    return torch.randint(PAPER.vocab, (3, PAPER.context + 1), generator=generator, device="cpu")


def model_of(variant: Variant) -> Transformer:
    model = Transformer(SHAPE, variant, dtype=torch.float64)
    perturb(model)
    return model


def gradients(model: Transformer) -> dict[str, NDArray[np.float64]]:
    """Those of the batch that the operator sees."""
    model.zero_grad()
    tokens_bs = batch(0)
    F.cross_entropy(model(tokens_bs[:, :-1]).flatten(0, 1), tokens_bs[:, 1:].flatten()).backward()
    return {name: p.grad.numpy().copy() for name, p in model.named_parameters() if p.grad is not None}


def moment(variant: Variant, layer: int, gate: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """M, from a probe: the gradient of a matrix W = 0 in z = MLP(x) + f(x g) x W."""
    model = model_of(variant)
    probe = torch.zeros(SHAPE.hidden, SHAPE.hidden, dtype=torch.float64, requires_grad=True)
    block = model.layers[layer]
    plain = block.mlp

    def probed(x_th: Tensor, onto_th: Tensor | None) -> Tensor:
        seen = x_th if gate is None else x_th * F.silu(x_th @ torch.from_numpy(gate))[:, None]
        return plain(x_th, onto_th) + seen @ probe  # type: ignore[operator, no-any-return]

    vars(block)["mlp"] = probed
    gradients(model)
    assert probe.grad is not None
    return probe.grad.numpy()


@pytest.mark.parametrize("variant", [*SLOPES, "gated"])
def test_the_gradient_is_what_the_equation_says(variant: str) -> None:
    """|dL/du|² summed over new units = (c f'(0))² times the sum of the top squared singular values of M."""
    kind = VARIANTS[variant]
    model = model_of(kind)
    old = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    grow(model, None, [GrowMlp(5 + NEW)], operator=GradMax(), batches=batch)
    new = {name: p.detach().numpy() for name, p in model.named_parameters()}
    found = gradients(model)
    for layer in (0, 1):
        at = f"layers.{layer}."
        gate = new[f"{at}gate"][:, 5] if kind.gated else None
        _, singular, vectors = np.linalg.svd(moment(kind, layer, gate))
        size = np.linalg.norm(old[f"{at}down"], axis=1).mean()
        chosen = new[f"{at}down"][5:]
        np.testing.assert_allclose(np.abs(chosen @ vectors[:NEW].T), size * np.eye(NEW), atol=1e-9)
        assert not new[f"{at}up"][:, 5:].any()
        measured = (found[f"{at}up"][:, 5:] ** 2).sum()
        expected = (size * SLOPES.get(variant, 1.0)) ** 2 * (singular[:NEW] ** 2).sum()
        np.testing.assert_allclose(measured, expected, rtol=1e-9)


@pytest.mark.parametrize("variant", [*SLOPES, "gated"])
def test_it_is_larger_than_that_of_preserve_and_of_other_directions_of_the_same_norm(variant: str) -> None:
    event = [GrowMlp(5 + NEW)]
    model = model_of(VARIANTS[variant])
    grow(model, None, event, operator=GradMax(), batches=batch)
    sizes = [float(model.get_parameter(f"layers.{i}.down")[5:].detach().norm()) for i in (0, 1)]
    best = gradient_of_new(model, ("up",))
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer, size in enumerate(sizes):
            part = model.get_parameter(f"layers.{layer}.down")[5:]
            drawn = torch.linalg.qr(torch.randn(part.T.shape, generator=random, dtype=part.dtype)).Q.T
            drawn = drawn * size / drawn.norm()
            if VARIANTS[variant].activation == "relu":  # new units have a bias there: keep the function
                model.get_parameter(f"layers.{layer}.down_bias").add_((part - drawn).sum(0))
            part.copy_(drawn)
    assert gradient_of_new(model, ("up",)) < best

    plain = model_of(VARIANTS[variant])
    grow(plain, None, event, operator=Preserve())
    with torch.no_grad():
        for layer, size in enumerate(sizes):
            part = plain.get_parameter(f"layers.{layer}.up")[:, 5:]
            part.mul_(size / part.norm())
    assert gradient_of_new(plain, ("up", "down")) < best


def gradient_of_new(model: Transformer, roles: tuple[str, ...]) -> float:
    found = gradients(model)
    parts = [
        found[f"layers.{i}.{r}"][:, 5:] if r == "up" else found[f"layers.{i}.{r}"][5:]
        for i in (0, 1)
        for r in roles
    ]
    return float(np.sqrt(sum((part**2).sum() for part in parts)))


def test_every_h_gated_units_have_a_gate_and_singular_vectors_of_their_own() -> None:
    kind = VARIANTS["gated"]
    model = model_of(kind)
    grow(model, None, [GrowMlp(5 + 15)], operator=GradMax(), batches=batch)
    new = {name: p.detach().numpy() for name, p in model.named_parameters()}
    size = np.linalg.norm(new["layers.0.down"][:5], axis=1).mean()
    for first, stop in ((5, 11), (11, 17), (17, 20)):
        gate = new["layers.0.gate"][:, first]
        assert (new["layers.0.gate"][:, first:stop] == gate[:, None]).all()
        vectors = np.linalg.svd(moment(kind, 0, gate)).Vh[: stop - first]
        chosen = new["layers.0.down"][first:stop]
        np.testing.assert_allclose(np.abs(chosen @ vectors.T), size * np.eye(stop - first), atol=1e-9)
    assert (new["layers.0.gate"][:, 5] != new["layers.0.gate"][:, 11]).all()


@pytest.mark.parametrize("variant", ["paper", "gated"])
def test_the_parts_of_a_batch_give_what_the_batch_gives(variant: str) -> None:
    """Also where the last part is smaller."""
    models = [model_of(VARIANTS[variant]) for _ in range(3)]
    for model, at_once in zip(models, (None, 1, 2), strict=True):
        grow(model, None, [GrowMlp(5 + NEW)], operator=GradMax(), batches=batch, at_once=at_once)
    for other in models[1:]:
        for layer in (0, 1):
            one, parted = (m.get_parameter(f"layers.{layer}.down").detach() for m in (models[0], other))
            torch.testing.assert_close(parted.abs(), one.abs(), rtol=1e-7, atol=1e-9)


def test_a_model_in_bfloat16_can_be_decomposed() -> None:
    model = model_of(PAPER).to(torch.bfloat16)
    grow(model, None, [GrowMlp(5 + NEW)], operator=GradMax(), batches=batch)
    down = model.get_parameter("layers.0.down").detach()
    assert down.dtype == torch.bfloat16
    norm = float(down[:5].float().norm(dim=1).mean())
    assert down[5:].float().norm(dim=1).tolist() == pytest.approx([norm] * NEW, rel=0.02)


def test_where_the_gradient_is_not_finite_new_units_are_those_of_preserve() -> None:
    models = [model_of(PAPER) for _ in range(2)]
    for model, operator in zip(models, (GradMax(), Preserve()), strict=True):
        with torch.no_grad():
            model.output[0, 0] = torch.nan
        grow(model, None, [GrowMlp(5 + NEW)], operator=operator, batches=batch)
    for name, parameter in models[0].named_parameters():
        torch.testing.assert_close(parameter, models[1].get_parameter(name), rtol=0, atol=0, equal_nan=True)


def test_more_units_than_singular_vectors_take_their_negatives_and_then_none() -> None:
    model = model_of(PAPER)
    grow(model, None, [GrowMlp(5 + 15)], operator=GradMax(), batches=batch)
    down = model.get_parameter("layers.0.down").detach()
    assert torch.equal(down[5:11], -down[11:17])
    assert not down[17:].any()
    assert model.get_parameter("layers.0.up").detach()[:, 17:].all()
    before = down.clone()
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), steps=5)
    up = model.get_parameter("layers.0.up").detach()
    assert (up.norm(dim=0) > 0).all()
    assert (model.get_parameter("layers.0.down").detach() != before).any(1).all()


EVENTS: dict[str, list[Expansion]] = {
    "mlp": [GrowMlp(9)],
    "one mlp": [GrowMlp(19, layers=(1,))],
    "everything": [GrowMlp(9), GrowHidden(8), AddHeads(3), InsertLayers((1,))],
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("variant", ["paper", "gated", "norm after"])
def test_what_is_charged_is_what_is_spent(variant: str, event: str) -> None:
    kind = replace(VARIANTS[variant], tied=True)
    model = model_of(kind)
    for at_once in (None, 1):
        spent = counted_flops(GradMax(), model, EVENTS[event], batch, at_once)
        assert spent == GradMax().flops(SHAPE, EVENTS[event], kind, 3)


def test_events_that_widen_no_mlp_cost_nothing_and_need_no_batch() -> None:
    event: list[Expansion] = [GrowHidden(8), InsertLayers((1,))]
    assert GradMax().flops(SHAPE, event, PAPER, 3) == 0
    grow(model_of(PAPER), None, event, operator=GradMax())
    with pytest.raises(ValueError, match="operator gradmax learns from batches, and none were given"):
        grow(model_of(PAPER), None, [GrowMlp(9)], operator=GradMax())
    with pytest.raises(ValueError, match="at_once must be at least one sequence, not 0"):
        grow(model_of(PAPER), None, [GrowMlp(9)], operator=GradMax(), batches=batch, at_once=0)


def test_the_old_model_is_not_touched_by_looking() -> None:
    model = model_of(PAPER)
    tokens_bs = tokens_for(PAPER)
    with torch.no_grad():
        before = model(tokens_bs)
        grow(model, None, EVENTS["everything"], operator=GradMax(), batches=batch)
        torch.testing.assert_close(model(tokens_bs), before, rtol=1e-12, atol=1e-13)
    assert all(parameter.grad is None for parameter in model.parameters())
