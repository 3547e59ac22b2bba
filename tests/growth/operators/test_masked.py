"""Masks: what the forward pass sees at each m, its gradients, and what later events make of them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from nasgrow.expansions import Expansion, GrowHidden, GrowMlp, InsertLayers
from nasgrow.growth import grow
from nasgrow.growth.masks import Mask, masked, settle, still_closed
from nasgrow.model import Transformer
from nasgrow.operators import (
    AnyOperator,
    GradMax,
    Masked,
    Net2Net,
    Preserve,
    Stack,
    WidthAndDepth,
    opening_within,
)
from nasgrow.shape import Shape, Variant
from nasgrow.strict import parse
from nasgrow.verify import BASE, EXPANSIONS, LIMITS, PAPER, VARIANTS
from tests.growth.snapshots import everything_of, same
from tests.reference import logits
from tests.steps import backward, perturb, tokens_for

SHAPE = Shape.uniform(hidden=6, layers=2, mlp=5, heads=2, key=4, value=3)


def model_of(variant: Variant = PAPER, shape: Shape = SHAPE) -> Transformer:
    model = Transformer(shape, variant, dtype=torch.float64)
    perturb(model)
    return model


def test_new_slices_are_seen_times_m_and_gradients_are_too() -> None:
    """Forward: raw values times m where the table has zeros; dL/draw = m dL/dseen."""
    model = model_of()
    growth = grow(model, None, [GrowMlp(9), GrowHidden(8)], operator=Masked(opening=0.2), spent=0.4)
    assert {mask[2:] for mask in growth.masks} == {(0.4, 0.2)}
    raw = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    m = (0.55 - 0.4) / 0.2
    factors = {name: np.ones_like(values) for name, values in raw.items()}
    for name, factor in factors.items():
        leaf = name.rpartition(".")[2]
        if leaf in ("embedding", "positions", "out", "down"):
            assert raw[name][:, 6:].all(), "what will open is not zero"
            factor[:, 6:] = m
        if leaf == "down":
            factor[5:] = m
        if leaf == "down_bias":
            factor[6:] = m
    seen = {name: raw[name] * factors[name] for name in raw}
    tokens_bs = tokens_for(PAPER)
    expected = logits(seen, model.shape, model.variant, tokens_bs[0].tolist())
    with masked(model, growth.masks, 0.55), torch.no_grad():
        np.testing.assert_allclose(model(tokens_bs)[0].numpy(), expected, rtol=1e-9, atol=1e-12)

    other = copy.deepcopy(model)
    settle(other, growth.masks, 0.55)
    for name, parameter in other.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), seen[name], rtol=1e-14)
    backward(other)
    with masked(model, growth.masks, 0.55, gradients=True):
        backward(model)
    for name, parameter in model.named_parameters():
        assert np.array_equal(parameter.detach().numpy(), raw[name]), "raw values are back, to the bit"
        assert parameter.grad is not None
        full = other.get_parameter(name).grad
        assert full is not None
        times = torch.from_numpy(factors[name])
        torch.testing.assert_close(parameter.grad, full * times, rtol=1e-12, atol=1e-15)


def test_closed_it_is_preserve_open_it_is_raw() -> None:
    model, tokens_bs = model_of(), tokens_for(PAPER)
    with torch.no_grad():
        before = model(tokens_bs)
        growth = grow(model, None, EXPANSIONS["everything"][:3], operator=Masked(), spent=0.3)
        raw = model(tokens_bs)
        with masked(model, growth.masks, 0.3):
            torch.testing.assert_close(model(tokens_bs), before, rtol=1e-12, atol=1e-12)
        with masked(model, growth.masks, 0.4):
            assert torch.equal(model(tokens_bs), raw)
    assert (raw - before).abs().max() > 0.1
    assert not still_closed(growth.masks, 0.4)


def test_an_error_while_looking_leaves_the_raw_values() -> None:
    model = model_of()
    growth = grow(model, None, [GrowMlp(9)], operator=Masked())
    before = everything_of(model)
    with pytest.raises(KeyboardInterrupt), masked(model, growth.masks, 0.01, gradients=True):
        raise KeyboardInterrupt
    assert same(everything_of(model), before)


def test_without_masks_the_model_is_not_even_looked_at() -> None:
    with masked(None, (), 0.5, gradients=True):  # type: ignore[arg-type]
        pass


LATER: list[AnyOperator] = [Masked(), Preserve(), Net2Net(noise=0)]


@pytest.mark.parametrize("later", LATER, ids=lambda operator: operator.kind)
@pytest.mark.parametrize("variant", ["paper", "gated", "no positions", "norm after", "tied + final norm"])
def test_an_event_while_masks_open_preserves_what_is_seen(later: AnyOperator, variant: str) -> None:
    """The first event grows all but layers by odd amounts, the second everything."""
    first = [expansion for expansion in EXPANSIONS["everything"] if not isinstance(expansion, InsertLayers)]
    second: list[Expansion] = [GrowHidden(47), GrowMlp(53), InsertLayers((0, 2))]
    model, tokens_bs = model_of(VARIANTS[variant], BASE), tokens_for(PAPER)
    masks = grow(model, None, first, operator=Masked(), spent=0.2).masks
    with torch.no_grad():
        with masked(model, masks, 0.23):
            before = model(tokens_bs)
        growth = grow(model, None, second, operator=later, masks=masks, spent=0.23)
        with masked(model, growth.masks, 0.23):
            after = model(tokens_bs)
    assert {mask.at(0.23) for mask in growth.masks} >= {masks[0].at(0.23)}
    assert float((after - before).abs().max() / before.abs().max()) <= LIMITS["float64"]


def test_a_copied_layer_is_masked_as_its_source_is() -> None:
    model = model_of()
    pair = WidthAndDepth(width=Masked(), depth=Stack())
    growth = grow(model, None, [GrowMlp(9), InsertLayers((2,))], operator=pair)
    assert {mask.name for mask in growth.masks} == {f"layers.{layer}.down" for layer in range(3)}


def test_masks_open_within_what_is_left() -> None:
    assert opening_within(0.1, 0.5) == 0.1
    assert opening_within(0.1, 0.9) == pytest.approx(0.05)
    assert opening_within(1, 0) == 0.5
    mask = Mask("embedding", ((0, 1), (0, 1)), 0.25, 0.5)
    assert [mask.at(spent) for spent in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0, 0, 0.5, 1, 1]


@pytest.mark.parametrize("other", ["ligo", "gradmax"])
def test_operators_that_look_at_the_model_cannot_stand_beside_it(other: str) -> None:
    with pytest.raises(ValueError, match=f"operator {other} looks at the model, and cannot see the masks"):
        parse(WidthAndDepth, {"width": "masked", "depth": other}, "operator")


def test_an_operator_that_looks_at_the_model_waits_until_masks_are_open() -> None:
    model = model_of()
    growth = grow(model, None, [GrowHidden(8)], operator=Masked(), spent=0.3)
    before = everything_of(model)
    with pytest.raises(
        ValueError, match="operator gradmax cannot see masks, and masks of an earlier event are still"
    ):
        grow(model, None, [GrowMlp(9)], operator=GradMax(), masks=growth.masks, spent=0.4)
    assert same(everything_of(model), before)
