"""bert2BERT's equations against a direct computation."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.optim import AdamW

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowMlp, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.operators import Bert2Bert, Stack
from nasgrow.shape import Shape
from nasgrow.verify import LIMITS, PAPER, VARIANTS
from tests.steps import perturb, tokens_for, train

SHAPE = Shape.uniform(hidden=5, layers=3, mlp=3, heads=2, key=2, value=3)
WIDER: list[Expansion] = [GrowHidden(8), GrowMlp(5), AddHeads(3)]
H, P, E = np.array([0, 1, 2, 3, 4, 0, 1, 2]), np.array([0, 1, 2, 0, 1]), np.array([0, 1, 0])
COPIES_H, COPIES_P, COPIES_E = np.array([2, 2, 2, 1, 1]), np.array([2, 2, 1]), np.array([2, 1])


def model_of(shape: Shape = SHAPE, variant: str = "paper") -> Transformer:
    model = Transformer(shape, VARIANTS[variant], dtype=torch.float64)
    perturb(model)
    return model


def values(model: Transformer) -> dict[str, NDArray[np.float64]]:
    return {name: np.array(p.detach().numpy()) for name, p in model.named_parameters()}


def test_new_outputs_are_those_of_the_next_layer_read_through_widened_inputs() -> None:
    """U^l = [W~^l | W~^(l+1)[:, g]], W~ being W with its inputs duplicated and divided."""
    model = model_of()
    old = values(model)
    grow(model, None, WIDER, operator=Bert2Bert(init="aki", noise=0))
    new = values(model)
    root = np.sqrt(COPIES_H[H])
    for layer in range(3):
        following = min(layer + 1, 2)  # the last layer has only its own
        here, there = f"layers.{layer}.", f"layers.{following}."
        up = [old[name + "up"][H] / root[:, None] for name in (here, there)]
        expected = np.concatenate([up[0], up[1][:, P[3:]]], 1)
        np.testing.assert_allclose(new[here + "up"], expected, rtol=1e-13)
        bias = [old[name + "up_bias"] for name in (here, there)]
        assert np.array_equal(new[here + "up_bias"], np.concatenate([bias[0], bias[1][P[3:]]]))
        down = [old[name + "down"][P] / COPIES_P[P][:, None] for name in (here, there)]
        expected = np.concatenate([down[0], down[1][:, H[5:]]], 1) / root
        np.testing.assert_allclose(new[here + "down"], expected, rtol=1e-13)
        gain = [old[name + "mlp_norm"] for name in (here, there)]
        expected = np.concatenate([gain[0], gain[1][H[5:]]]) * sqrt(5 / 8)
        np.testing.assert_allclose(new[here + "mlp_norm"], expected, rtol=1e-13)
        for role, size in (("query", 2), ("key", 2), ("value", 3)):
            wide = [
                (old[f"{name}heads.0.{role}"][H] / root[:, None]).reshape(8, 2, size)
                for name in (here, there)
            ]
            expected = np.concatenate([wide[0], wide[1][:, E[2:]]], 1)
            np.testing.assert_allclose(new[f"{here}heads.0.{role}"].reshape(8, 3, size), expected, rtol=1e-13)
        out = [
            old[f"{name}heads.0.out"].reshape(2, 3, 5)[E] / COPIES_E[E][:, None, None]
            for name in (here, there)
        ]
        expected = np.concatenate([out[0], out[1][..., H[5:]]], 2) / root
        np.testing.assert_allclose(new[f"{here}heads.0.out"].reshape(3, 3, 8), expected, rtol=1e-13)
    for name in ("embedding", "positions"):
        np.testing.assert_allclose(new[name], old[name][:, H] / root, rtol=1e-13)


@pytest.mark.parametrize("variant", VARIANTS)
def test_width_alone_is_exact_with_fpi_and_its_noise_and_not_with_aki(variant: str) -> None:
    tokens_bs = tokens_for(PAPER)
    changes = {}
    for init in ("fpi", "aki"):
        model = model_of(variant=variant)
        with torch.no_grad():
            before = model(tokens_bs)
            grow(model, None, WIDER, operator=Bert2Bert.model_validate({"init": init, "noise": 0.3}))
            changes[init] = float((model(tokens_bs) - before).abs().max() / before.abs().max())
    assert changes["fpi"] <= LIMITS["float64"]
    assert changes["aki"] > 1e-2


def test_new_units_bring_the_history_of_where_they_come_from() -> None:
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, steps=2)
    old = [optimizer.state[model.get_parameter(f"layers.{i}.up_bias")]["exp_avg"].clone() for i in (0, 1)]
    grow(model, optimizer, [GrowMlp(6)], operator=Bert2Bert(init="aki"))
    found = optimizer.state[model.get_parameter("layers.0.up_bias")]["exp_avg"]
    torch.testing.assert_close(found, torch.cat(old) / 2, rtol=1e-12, atol=0)


def test_depth_is_the_whole_model_again_and_above_it_its_top() -> None:
    operator = Bert2Bert()
    assert operator.copied_layers(3, 6) == (0, 1, 2, 0, 1, 2)
    assert operator.copied_layers(3, 8) == (0, 1, 2, 0, 1, 2, 1, 2)
    assert operator.copied_layers(3, 4) == (0, 1, 2, 2)


def test_an_event_that_grows_both_stacks_the_widened_model() -> None:
    both, apart = model_of(), model_of()
    operator = Bert2Bert(init="aki")
    grow(both, None, [InsertLayers((1, 3, 3)), *WIDER], operator=operator)
    grow(apart, None, WIDER, operator=operator)
    grow(apart, None, [InsertLayers((3, 3, 3))], operator=Stack())
    assert all(map(torch.equal, both.parameters(), apart.parameters()))


def test_unequal_layers_have_no_next_one_to_take_units_from() -> None:
    model = model_of(GrowMlp(4, layers=(1,))(SHAPE))
    with pytest.raises(ValueError, match="init aki takes new units from the next layer, so all layers must"):
        grow(model, None, [GrowHidden(8)], operator=Bert2Bert(init="aki"))
    grow(model, None, [GrowHidden(8)], operator=Bert2Bert(init="fpi"))


@pytest.mark.parametrize(
    ("wider", "readers"),
    [
        (GrowMlp(9), {"down"}),
        (AddHeads(6), {"out"}),
        (GrowHidden(15), {"query", "key", "value", "up", "output"}),
    ],
)
def test_noise_falls_on_nothing_but_what_reads_copies(wider: Expansion, readers: set[str]) -> None:
    """Layers take from the next one: what they share with it is no copy of theirs."""
    plain, noisy = model_of(), model_of()
    grow(plain, None, [wider], operator=Bert2Bert(init="aki", noise=0))
    grow(noisy, None, [wider], operator=Bert2Bert(init="aki"))
    before, after = values(plain), values(noisy)
    changed = {name.split(".")[-1] for name in before if not np.array_equal(before[name], after[name])}
    assert changed == readers
