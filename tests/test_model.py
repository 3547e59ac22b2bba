"""The model against a second, independent forward pass, and its parameters against the table."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nasgrow import verify
from nasgrow.errors import UserError
from nasgrow.expansions import GrowKeys
from nasgrow.growth import grow
from nasgrow.model import Cache, Transformer
from nasgrow.params import table
from nasgrow.shape import HeadGroup, Layer, NormPlacement, Shape, Variant, pair_frequencies
from tests import reference

VOCAB = 11
CONTEXT = 9
PLAIN = Variant(vocab=VOCAB, context=CONTEXT)

EVEN_KEYS = Shape(
    hidden=7,
    layers=(
        Layer(5, (HeadGroup(2, 4, 3), HeadGroup(1, 10, 2))),
        Layer(12, (HeadGroup(1, 2, 5),)),
        Layer(3, (HeadGroup(1, 6, 1), HeadGroup(3, 2, 4), HeadGroup(2, 6, 1))),
    ),
)
ODD_KEYS = Shape(
    hidden=10,
    layers=(
        Layer(1, (HeadGroup(1, 1, 1), HeadGroup(3, 3, 2))),
        Layer(17, (HeadGroup(2, 5, 7), HeadGroup(1, 2, 7), HeadGroup(1, 5, 7))),
    ),
)

VARIANTS = {
    "default": PLAIN,
    "gelu": replace(PLAIN, activation="gelu"),
    "silu": replace(PLAIN, activation="silu"),
    "gated": replace(PLAIN, gated=True),
    "bidirectional": replace(PLAIN, causal=False),
    "rope": replace(PLAIN, positions="rope"),
    "no positions": replace(PLAIN, positions="none"),
    "final norm": replace(PLAIN, final_norm=True),
    "tied": replace(PLAIN, tied=True),
    "two queries": replace(PLAIN, queries=2),
    "three queries": replace(PLAIN, queries=3),
    "norm after": replace(PLAIN, norm="after"),
    "large epsilon": replace(PLAIN, epsilon=0.7),
    "small rope base": replace(PLAIN, positions="rope", rope_base=50.0),
    "like Llama": replace(PLAIN, activation="silu", gated=True, positions="rope", final_norm=True, queries=2),
    "like GPT-2": replace(PLAIN, activation="gelu", final_norm=True, tied=True),
    "like BERT": replace(PLAIN, activation="gelu", causal=False, norm="after", tied=True),
    "bidirectional rope": replace(PLAIN, causal=False, positions="rope", queries=3, rope_base=7.5),
    "norm after, large epsilon": replace(PLAIN, norm="after", epsilon=0.7, final_norm=True, gated=True),
    "no biases": replace(PLAIN, biases=False),
    "no biases, gated": replace(PLAIN, activation="silu", gated=True, norm="after", biases=False),
    "qkv bias": replace(PLAIN, qkv_bias=True),
    "like Qwen2": Variant(
        VOCAB, CONTEXT, "silu", True, True, "rope", True, True, 3, biases=False, qkv_bias=True
    ),
    "nothing default": Variant(
        VOCAB, CONTEXT, "silu", True, False, "rope", True, True, 2, "after", 0.03, 200.0, False, True
    ),
}
EQUAL_KEYS = Shape(
    hidden=7,
    layers=(Layer(5, (HeadGroup(2, 6, 3), HeadGroup(1, 6, 2))), Layer(12, (HeadGroup(1, 6, 6),))),
)
KEY_FIXED = {
    "qk norm": replace(PLAIN, qk_norm=True),
    "qk norm, large epsilon": replace(
        PLAIN, qk_norm=True, qk_epsilon=0.7, positions="rope", queries=2, qkv_bias=True
    ),
    "frequencies": replace(PLAIN, positions="rope", rope_frequencies=(0.5, 0.0, 1.25)),
    "both": replace(PLAIN, positions="rope", rope_frequencies=(0.5, 0.1, 1.25), qk_norm=True, norm="after"),
}
"""Variants whose keys cannot grow."""

every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
every_variant_without_rope = pytest.mark.parametrize(
    "variant",
    [pytest.param(variant, id=name) for name, variant in VARIANTS.items() if variant.positions != "rope"],
)
every_kind_of_positions = pytest.mark.parametrize(
    "variant", [VARIANTS["default"], VARIANTS["rope"], VARIANTS["no positions"]], ids=lambda v: v.positions
)


def random_model(shape: Shape, variant: Variant) -> Transformer:
    """A float64 model of which no tensor is still at its fresh values."""
    model = Transformer(shape, variant, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    for tensor in values(model).values():
        tensor.add_(torch.randn(tensor.shape, dtype=torch.float64, generator=generator), alpha=0.3)
    return model


def random_tokens(length: int) -> Tensor:
    return torch.randint(VOCAB, (2, length), generator=torch.Generator().manual_seed(2))


def values(model: Transformer) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def drawn(model: Transformer) -> dict[str, Tensor]:
    """The tensors with random values; those that close a layer have none."""
    entries = table(model.shape, model.variant)
    return {
        name: tensor
        for name, tensor in values(model).items()
        if entries[name].row.start is None and not entries[name].closed(model.variant)
    }


def model_logits(model: Transformer, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(tokens)
    return result


def reference_logits(model: Transformer, tokens: Tensor) -> NDArray[np.float64]:
    parameters = {name: tensor.numpy() for name, tensor in values(model).items()}
    rows = [reference.logits(parameters, model.shape, model.variant, row) for row in tokens.tolist()]
    return np.stack(rows)


def assert_equals_reference(model: Transformer, tokens: Tensor) -> None:
    actual, expected = model_logits(model, tokens).numpy(), reference_logits(model, tokens)
    assert actual.shape == expected.shape == (*tokens.shape, VOCAB)
    assert np.abs(actual - expected).max() < 1e-10


def unequal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> set[str]:
    """The names in ``first`` whose tensors are not the same in ``second``."""
    return {name for name, tensor in first.items() if not torch.equal(tensor, second[name])}


@every_variant
def test_logits_equal_the_reference(variant: Variant) -> None:
    assert_equals_reference(random_model(EVEN_KEYS, variant), random_tokens(CONTEXT))


@pytest.mark.parametrize("variant", KEY_FIXED.values(), ids=KEY_FIXED.keys())
def test_logits_equal_the_reference_with_keys_that_cannot_grow(variant: Variant) -> None:
    model = random_model(EQUAL_KEYS, variant)
    assert_equals_reference(model, random_tokens(CONTEXT))
    cache, tokens = Cache(), random_tokens(CONTEXT)
    with torch.no_grad():
        one_by_one = torch.cat([model(tokens[:, i : i + 1], cache) for i in range(CONTEXT)], 1)
    assert (one_by_one - model_logits(model, tokens)).abs().max() < 1e-12


@every_variant_without_rope
def test_logits_equal_the_reference_with_odd_keys(variant: Variant) -> None:
    assert_equals_reference(random_model(ODD_KEYS, variant), random_tokens(CONTEXT))


@every_kind_of_positions
@pytest.mark.parametrize("length", [1, 4])
def test_logits_of_short_sequences_equal_the_reference(variant: Variant, length: int) -> None:
    assert_equals_reference(random_model(EVEN_KEYS, variant), random_tokens(length))


def change_after(position: int, variant: Variant) -> Tensor:
    """The largest change of each position's logits when every token after ``position`` changes."""
    model = random_model(EVEN_KEYS, variant)
    tokens = random_tokens(CONTEXT)
    changed = tokens.clone()
    changed[:, position + 1 :] = (tokens[:, position + 1 :] + 1) % VOCAB
    return (model_logits(model, tokens) - model_logits(model, changed)).abs().amax(dim=(0, 2))


@every_kind_of_positions
@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("position", [0, 3, CONTEXT - 2])
def test_a_causal_model_does_not_see_later_tokens(variant: Variant, queries: int, position: int) -> None:
    change = change_after(position, replace(variant, queries=queries))
    assert change[: position + 1].max() < 1e-12
    assert change[position + 1 :].min() > 1e-6


@every_kind_of_positions
@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("position", [0, 3, CONTEXT - 2])
def test_a_bidirectional_model_sees_later_tokens(variant: Variant, queries: int, position: int) -> None:
    change = change_after(position, replace(variant, causal=False, queries=queries))
    assert change.min() > 1e-6


@every_kind_of_positions
def test_too_long_a_sequence_is_refused_with_its_length_and_the_context(variant: Variant) -> None:
    model = Transformer(EVEN_KEYS, variant)
    with pytest.raises(ValueError, match=rf"\b{CONTEXT + 1}\b.*\b{CONTEXT}\b"):
        model_logits(model, random_tokens(CONTEXT + 1))


# With a cache

CAUSAL = {name: variant for name, variant in verify.VARIANTS.items() if variant.causal}


def cached_logits(model: Transformer, tokens: Tensor, prefill: int) -> Tensor:
    """The logits if the first tokens are seen at once and then one at a time."""
    cache = Cache()
    parts = []
    for piece in tokens.split([prefill] + [1] * (tokens.shape[1] - prefill), dim=1):
        with torch.no_grad():
            parts.append(model(piece, cache))
        assert cache.length == sum(part.shape[1] for part in parts)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("prefill", [1, 5, verify.PAPER.context])
@pytest.mark.parametrize("variant", CAUSAL)
def test_one_token_at_a_time_gives_the_logits_of_all_at_once(variant: str, prefill: int) -> None:
    model = random_model(verify.BASE, CAUSAL[variant])
    tokens = random_tokens(verify.PAPER.context)
    difference = cached_logits(model, tokens, prefill) - model_logits(model, tokens)
    assert difference.abs().max() < 1e-10


@every_kind_of_positions
def test_tokens_that_follow_too_many_are_refused_with_their_number(variant: Variant) -> None:
    model = Transformer(EVEN_KEYS, variant)
    cache = Cache()
    with torch.no_grad():
        model(random_tokens(CONTEXT), cache)
    with pytest.raises(ValueError, match=rf"\b{CONTEXT + 1}\b.*\b{CONTEXT}\b"):
        model(random_tokens(1), cache)


@pytest.mark.parametrize("base", [50.0, 10_000.0])
def test_the_frequencies_of_a_larger_key_start_with_those_of_a_smaller(base: float) -> None:
    longest = pair_frequencies(40, base)
    assert len(set(longest)) == 40
    for pairs in range(1, 40):
        assert pair_frequencies(pairs, base) == longest[:pairs]


@pytest.mark.parametrize("base", [50.0, 10_000.0])
@pytest.mark.parametrize("key", [2, 4, 8, 16, 32, 64, 128])
def test_the_frequencies_of_a_power_of_two_are_those_of_standard_rope(key: int, base: float) -> None:
    standard = [base ** (-2 * i / key) for i in range(key // 2)]
    assert sorted(pair_frequencies(key // 2, base)) == pytest.approx(sorted(standard), rel=1e-12)


# RoPE's table is kept

ROPE = VARIANTS["rope"]


def test_logits_equal_the_reference_after_keys_have_grown_and_those_of_a_copy_too() -> None:
    model = random_model(EVEN_KEYS, ROPE)
    model_logits(model, random_tokens(CONTEXT))
    copied = copy.deepcopy(model)
    grow(model, None, [GrowKeys(14)])
    assert_equals_reference(model, random_tokens(CONTEXT))
    assert_equals_reference(copied, random_tokens(CONTEXT))
    grow(copied, None, [GrowKeys(12, layers=(1,))])
    assert_equals_reference(copied, random_tokens(CONTEXT))


def test_a_model_that_becomes_more_precise_turns_as_precisely() -> None:
    model = Transformer(EVEN_KEYS, ROPE)
    model_logits(model, random_tokens(CONTEXT))
    assert_equals_reference(model.double(), random_tokens(CONTEXT))


def test_the_table_is_in_no_state() -> None:
    model = Transformer(EVEN_KEYS, ROPE)
    model_logits(model, random_tokens(CONTEXT))
    assert model.state_dict().keys() == table(EVEN_KEYS, ROPE).keys()
    assert not list(model.buffers())


@every_variant
def test_the_parameters_are_those_of_the_table(variant: Variant) -> None:
    expected = {name: entry.stored for name, entry in table(EVEN_KEYS, variant).items()}
    assert {name: tuple(t.shape) for name, t in values(Transformer(EVEN_KEYS, variant)).items()} == expected


@every_variant
def test_every_parameter_has_a_part_in_the_logits(variant: Variant) -> None:
    model = random_model(EVEN_KEYS, variant)
    loss: Tensor = model(random_tokens(CONTEXT)).square().sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    names = [name for name, _ in model.named_parameters()]
    assert not {name for name, grad in zip(names, gradients, strict=True) if grad is None or not grad.any()}


@pytest.mark.parametrize(
    "given",
    [
        ("x", PLAIN),
        (None, PLAIN),
        (EVEN_KEYS, None),
        (EVEN_KEYS, {}),
        (EVEN_KEYS, "relu"),
        (EVEN_KEYS.layers, PLAIN),
    ],
    ids=repr,
)
def test_what_is_no_shape_or_variant_is_quoted(given: tuple[Any, Any]) -> None:
    shape, variant = given
    message = str(UserError(f"a model needs a Shape and a Variant, not {shape!r} and {variant!r}"))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):  # long ones are shortened
        Transformer(shape, variant)


def test_the_same_seed_gives_the_same_parameters_whatever_the_global_random_state() -> None:
    first = values(Transformer(EVEN_KEYS, PLAIN, seed=3))
    torch.rand(1)
    second = values(Transformer(EVEN_KEYS, PLAIN, seed=3))
    assert not unequal(first, second)


def test_another_seed_changes_every_drawn_value() -> None:
    first, second = (drawn(Transformer(EVEN_KEYS, PLAIN, seed=seed)) for seed in (3, 4))
    assert not {name for name in first if torch.any(first[name] == second[name])}


def test_float32_and_float64_models_draw_the_same_values() -> None:
    single = values(Transformer(EVEN_KEYS, PLAIN, dtype=torch.float32))
    double = values(Transformer(EVEN_KEYS, PLAIN, dtype=torch.float64))
    assert {tensor.dtype for tensor in single.values()} == {torch.float32}
    assert {tensor.dtype for tensor in double.values()} == {torch.float64}
    assert not unequal({name: tensor.double() for name, tensor in single.items()}, double)


def test_tensors_of_equal_size_are_drawn_differently() -> None:
    shape = Shape.uniform(hidden=4, layers=2, mlp=4, heads=2, key=2, value=2)
    draws = drawn(Transformer(shape, Variant(vocab=4, context=4, gated=True)))
    assert {tuple(tensor.shape) for tensor in draws.values()} == {(4, 4)}
    assert len({tuple(tensor.flatten().tolist()) for tensor in draws.values()}) == len(draws)


def test_another_layer_leaves_the_draws_of_the_others_alone() -> None:
    grown = EVEN_KEYS.with_layers((*EVEN_KEYS.layers, Layer(6, (HeadGroup(2, 4, 4),))))
    assert not unequal(values(Transformer(EVEN_KEYS, PLAIN)), values(Transformer(grown, PLAIN)))


def test_another_mlp_width_leaves_all_other_draws_alone() -> None:
    first, second, third = EVEN_KEYS.layers
    wider = EVEN_KEYS.with_layers((first, replace(second, mlp=second.mlp + 1), third))
    resized = {"layers.1.up", "layers.1.up_bias", "layers.1.down"}
    assert unequal(values(Transformer(EVEN_KEYS, PLAIN)), values(Transformer(wider, PLAIN))) == resized


def test_another_head_group_only_rescales_the_output_projection_by_its_fan_in() -> None:
    first, second, third = EVEN_KEYS.layers
    more_heads = replace(second, groups=(*second.groups, HeadGroup(3, 4, 5)))
    open_outputs = replace(PLAIN, norm="after")
    before = values(Transformer(EVEN_KEYS, open_outputs))
    after = values(Transformer(EVEN_KEYS.with_layers((first, more_heads, third)), open_outputs))
    out = "layers.1.heads.0.out"
    assert unequal(before, after) == {out}
    assert torch.allclose(after[out] * math.sqrt((5 + 3 * 5) / 5), before[out], rtol=1e-5, atol=1e-6)


def test_further_tensors_of_a_variant_leave_the_draws_of_the_others_alone() -> None:
    more = Transformer(EVEN_KEYS, replace(PLAIN, gated=True, final_norm=True))
    assert not unequal(values(Transformer(EVEN_KEYS, PLAIN)), values(more))


HIDDEN, MLP, QUERIES = 96, 250, 2
WIDE_LAYER = Layer(MLP, (HeadGroup(2, 30, 20), HeadGroup(1, 50, 140)))
FAN_IN = {
    **dict.fromkeys(("embedding", "positions", "query", "key", "value", "gate", "up", "output"), HIDDEN),
    "out": QUERIES * (2 * 20 + 140),
    "down": MLP,
}
CONSTANTS = {"final_norm": 1.0, "up_bias": 0.0, "down_bias": 0.0}
CLOSED: dict[NormPlacement, dict[str, float]] = {
    "before": {"out": 0.0, "down": 0.0, "attention_norm": 1.0, "mlp_norm": 1.0},
    "after": {"attention_norm": 0.0, "mlp_norm": 0.0},
}


def fresh_tensors(norm: NormPlacement) -> dict[str, list[Tensor]]:
    """The tensors of a fresh model with every kind of tensor, by role."""
    shape = Shape(HIDDEN, layers=(WIDE_LAYER, WIDE_LAYER))
    variant = replace(PLAIN, gated=True, final_norm=True, queries=QUERIES, norm=norm)
    roles: dict[str, list[Tensor]] = {}
    for name, tensor in values(Transformer(shape, variant, dtype=torch.float64)).items():
        roles.setdefault(name.rpartition(".")[2], []).append(tensor)
    return roles


@pytest.mark.parametrize("norm", CLOSED)
def test_fresh_tensors_are_random_with_variance_one_over_fan_in_or_constant(norm: NormPlacement) -> None:
    """Layers start closed: where the norm comes first by zero outputs, where it comes last by zero gains."""
    constants = {**CONSTANTS, **CLOSED[norm]}
    found = fresh_tensors(norm)
    assert found.keys() == FAN_IN.keys() | constants.keys()
    for role, tensors in found.items():
        for tensor in tensors:
            if role in constants:
                assert torch.all(tensor == constants[role]), role
            else:
                unit = tensor * math.sqrt(FAN_IN[role])
                tolerance = 5 / math.sqrt(unit.numel())
                assert abs(unit.mean().item()) < tolerance, role
                assert abs(unit.var().item() - 1) < tolerance, role
