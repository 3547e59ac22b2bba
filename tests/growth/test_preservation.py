"""Growing does not change a model's function, and each rule of the table is needed for that."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nasgrow import model as model_module
from nasgrow import params
from nasgrow.errors import UserError
from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer, fresh
from nasgrow.params import ROWS, TensorSpec
from nasgrow.shape import HeadGroup, Layer, Shape, Variant
from nasgrow.verify import BASE, EXPANSIONS, KEY_BASE, KEY_EXPANSIONS, KEY_FIXED, LIMITS, PAPER, VARIANTS
from tests.steps import perturb, tokens_for, train
from tests.strategies import expansion_sequences, shapes, variants

DTYPES = {"float64": torch.float64, "float32": torch.float32}


def noise(entry: TensorSpec, sizes: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Free values that are nowhere zero or one: they hide no missing rule."""
    return torch.empty(sizes).uniform_(0.5, 1.5, generator=generator)


def difference(
    model: Transformer, expansions: Sequence[Expansion], init: model_module.Initialiser = fresh
) -> float:
    """The largest change of a logit that growing causes, relative to the largest logit."""
    tokens_bs = tokens_for(model.variant)
    with torch.no_grad():
        before = model(tokens_bs)
        grow(model, None, expansions, init=init)
        after = model(tokens_bs)
    return float((after - before).abs().max() / before.abs().max())


@pytest.mark.parametrize("kind", ["fresh", "trained"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", [*VARIANTS, *KEY_FIXED])
def test_every_expansion_preserves_every_variant(variant: str, dtype: str, kind: str) -> None:
    base, events = (KEY_BASE, KEY_EXPANSIONS) if variant in KEY_FIXED else (BASE, EXPANSIONS)
    model = Transformer(base, {**VARIANTS, **KEY_FIXED}[variant], seed=1, dtype=DTYPES[dtype])
    if kind == "trained":
        train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), steps=5)
    for expansions in events.values():
        assert difference(copy.deepcopy(model), expansions) <= LIMITS[dtype], expansions


@pytest.mark.parametrize("variant", KEY_FIXED)
def test_keys_that_cannot_grow_exactly_are_refused_with_the_reason(variant: str) -> None:
    model = Transformer(KEY_BASE, KEY_FIXED[variant])
    with pytest.raises(UserError, match=r"^key cannot grow: (qk_norm normalises|rope_frequencies lists) "):
        grow(model, None, [GrowKeys(12)])
    assert model.shape == KEY_BASE


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_sequence_of_expansions_preserves_any_shape(data: st.DataObject) -> None:
    variant = data.draw(variants())
    even = variant.positions == "rope"
    shape = data.draw(shapes(even_keys=even))
    sequence = data.draw(expansion_sequences(shape, max_size=5, even_keys=even))
    model = Transformer(shape, variant, dtype=torch.float64)
    perturb(model)
    assert difference(copy.deepcopy(model), sequence, noise) <= LIMITS["float64"]
    one_by_one = copy.deepcopy(model)
    for expansion in sequence:
        assert difference(one_by_one, [expansion], noise) <= LIMITS["float64"]


SHAPE = Shape(12, (Layer(8, (HeadGroup(2, 4, 4),)), Layer(8, (HeadGroup(2, 4, 4),))))
BY_AXIS: dict[str, Expansion] = {
    "h": GrowHidden(20),
    "p": GrowMlp(12),
    "E": AddHeads(3),
    "k": GrowKeys(8),
    "v": GrowValues(6),
}
ZERO_RULES = [(role, axis) for role, row in ROWS.items() for axis in sorted(row.zero)]
SCALE_RULES = [(role, axis) for role, row in ROWS.items() for axis in sorted(row.power)]
CLOSING_RULES = [(role, placement) for role, row in ROWS.items() if (placement := row.closes) is not None]


def rule_model(norm: str = "before", role: str = "") -> Transformer:
    """Positions are learned, but for biases of keys: without RoPE they add the same to all scores."""
    variant = replace(
        PAPER,
        final_norm=True,
        norm="after" if norm == "after" else "before",
        positions="rope" if role == "key_bias" else "learned",
        qkv_bias=True,
    )
    model = Transformer(SHAPE, variant, dtype=torch.float64)
    perturb(model)
    return model


def test_the_rules_are_those_of_the_paper() -> None:
    assert set(ZERO_RULES) == {
        ("embedding", "h"),
        ("positions", "h"),
        ("key", "k"),
        ("key_bias", "k"),
        ("out", "E"),
        ("out", "v"),
        ("out", "h"),
        ("down", "p"),
        ("down", "h"),
        ("down_bias", "h"),
    }
    assert set(SCALE_RULES) == {
        ("key", "k"),
        ("key_bias", "k"),
        ("attention_norm", "h"),
        ("mlp_norm", "h"),
        ("final_norm", "h"),
    }


@pytest.mark.parametrize(("role", "axis"), ZERO_RULES)
def test_without_a_zero_slice_the_function_changes(
    role: str, axis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert difference(rule_model(role=role), [BY_AXIS[axis]], noise) <= 1e-12
    monkeypatch.setitem(params.ROWS, role, replace(ROWS[role], zero=ROWS[role].zero - {axis}))
    assert difference(rule_model(role=role), [BY_AXIS[axis]], noise) > 1e-3


@pytest.mark.parametrize(("role", "axis"), SCALE_RULES)
def test_without_a_rescale_the_function_changes(
    role: str, axis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(params.ROWS, role, replace(ROWS[role], power={}))
    assert difference(rule_model(role=role), [BY_AXIS[axis]], noise) > 1e-3


@pytest.mark.parametrize(("role", "placement"), CLOSING_RULES)
def test_a_new_layer_that_is_not_closed_changes_the_function(
    role: str, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert difference(rule_model(placement), [InsertLayers((1,))], noise) <= 1e-12
    monkeypatch.setitem(params.ROWS, role, replace(ROWS[role], closes=None))
    assert difference(rule_model(placement), [InsertLayers((1,))], noise) > 1e-3


def test_an_epsilon_added_to_the_mean_changes_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def mean_epsilon(x_bsh: Tensor, gain_h: Tensor, variant: Variant) -> Tensor:
        return torch.nn.functional.rms_norm(x_bsh, (x_bsh.shape[-1],), gain_h, variant.epsilon)

    small = rule_model()
    with torch.no_grad():
        small.embedding.mul_(0.01)
        small.positions.mul_(0.01)
    assert difference(copy.deepcopy(small), [GrowHidden(20)], noise) <= 1e-12
    monkeypatch.setattr(model_module, "norm", mean_epsilon)
    assert difference(small, [GrowHidden(20)], noise) > 1e-3
