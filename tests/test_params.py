from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasgrow.params import ROWS, TensorSpec, table
from nasgrow.shape import HeadGroup, Layer, Shape, Variant
from nasgrow.verify import PAPER
from tests.strategies import examples, shapes, variants

EXAMPLE = Shape(
    hidden=5,
    layers=(
        Layer(6, (HeadGroup(2, 2, 3), HeadGroup(1, 4, 8))),
        Layer(9, (HeadGroup(1, 6, 4),)),
    ),
)
BARE = {
    "embedding",
    "layers.0.attention_norm",
    "layers.0.heads.0.query",
    "layers.0.heads.0.key",
    "layers.0.heads.0.value",
    "layers.0.heads.0.out",
    "layers.0.heads.1.query",
    "layers.0.heads.1.key",
    "layers.0.heads.1.value",
    "layers.0.heads.1.out",
    "layers.0.mlp_norm",
    "layers.0.up",
    "layers.0.up_bias",
    "layers.0.down",
    "layers.0.down_bias",
    "layers.1.attention_norm",
    "layers.1.heads.0.query",
    "layers.1.heads.0.key",
    "layers.1.heads.0.value",
    "layers.1.heads.0.out",
    "layers.1.mlp_norm",
    "layers.1.up",
    "layers.1.up_bias",
    "layers.1.down",
    "layers.1.down_bias",
}
"""The tensors that the example has in every variant with biases in its MLPs."""
QKV_BIASES = {
    f"layers.{place}.{name}_bias"
    for place in ("0.heads.0", "0.heads.1", "1.heads.0")
    for name in ("query", "key", "value")
}


@st.composite
def models(draw: st.DrawFn) -> tuple[Shape, Variant]:
    variant = draw(variants())
    return draw(shapes(even_keys=variant.positions == "rope")), variant


# Which tensors there are


@pytest.mark.parametrize(
    ("variant", "more"),
    [
        (PAPER, {"positions", "output"}),
        (replace(PAPER, positions="none"), {"output"}),
        (replace(PAPER, positions="rope"), {"output"}),
        (replace(PAPER, tied=True), {"positions"}),
        (replace(PAPER, positions="none", tied=True), set()),
        (replace(PAPER, final_norm=True), {"positions", "output", "final_norm"}),
        (replace(PAPER, gated=True), {"positions", "output", "layers.0.gate", "layers.1.gate"}),
        (replace(PAPER, activation="silu"), {"positions", "output"}),
        (replace(PAPER, causal=False), {"positions", "output"}),
        (replace(PAPER, queries=3), {"positions", "output"}),
        (replace(PAPER, norm="after"), {"positions", "output"}),
        (replace(PAPER, qkv_bias=True), {"positions", "output", *QKV_BIASES}),
        (
            replace(PAPER, gated=True, positions="rope", final_norm=True, tied=True, queries=2, norm="after"),
            {"final_norm", "layers.0.gate", "layers.1.gate"},
        ),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_each_variant_has_exactly_its_tensors(variant: Variant, more: set[str]) -> None:
    assert set(table(EXAMPLE, variant)) == BARE | more


def test_biases_of_mlps_can_be_left_out() -> None:
    assert BARE - set(table(EXAMPLE, replace(PAPER, biases=False))) == {
        f"layers.{layer}.{name}_bias" for layer in (0, 1) for name in ("up", "down")
    }


def test_the_heads_of_a_layer_share_the_gains_of_queries_and_keys() -> None:
    shape = EXAMPLE.with_layers([Layer(6, (HeadGroup(2, 4, 3), HeadGroup(1, 4, 8)))])
    more = set(table(shape, replace(PAPER, qk_norm=True))) - set(table(shape, PAPER))
    assert more == {"layers.0.query_norm", "layers.0.key_norm"}
    assert table(shape, replace(PAPER, qk_norm=True))["layers.0.key_norm"].sizes == (4,)


@given(models())
@examples(50)
def test_every_entry_knows_its_own_name_layer_and_heads(model: tuple[Shape, Variant]) -> None:
    shape, variant = model
    for name, entry in table(shape, variant).items():
        assert name == entry.name == _name(shape, entry)


def _name(shape: Shape, entry: TensorSpec) -> str:
    if entry.layer is None:
        assert entry.heads is None
        return entry.role
    if entry.heads is None:
        return f"layers.{entry.layer}.{entry.role}"
    group = [span for span, _ in shape.layers[entry.layer].spans].index(entry.heads)
    return f"layers.{entry.layer}.heads.{group}.{entry.role}"


def test_a_shape_that_the_variant_cannot_have_is_refused() -> None:
    odd = EXAMPLE.with_layers([Layer(1, (HeadGroup(1, 3, 2),))])
    with pytest.raises(ValueError, match=r"^layer 0: .* must be even, not 3$"):
        table(odd, replace(PAPER, positions="rope"))


# Their sizes


@pytest.mark.parametrize(
    ("name", "sizes", "stored", "fan_in"),
    [
        ("embedding", (11, 5), (11, 5), 5),
        ("positions", (7, 5), (7, 5), 5),
        ("layers.0.attention_norm", (5,), (5,), 5),
        ("layers.0.heads.0.query", (5, 2, 3, 2), (5, 12), 5),
        ("layers.0.heads.0.key", (5, 2, 2), (5, 4), 5),
        ("layers.0.heads.0.value", (5, 2, 3), (5, 6), 5),
        ("layers.0.heads.0.out", (2, 3, 3, 5), (18, 5), 42),
        ("layers.0.heads.0.query_bias", (2, 3, 2), (12,), 5),
        ("layers.0.heads.0.key_bias", (2, 2), (4,), 5),
        ("layers.0.heads.0.value_bias", (2, 3), (6,), 5),
        ("layers.0.heads.1.query", (5, 1, 3, 4), (5, 12), 5),
        ("layers.0.heads.1.key", (5, 1, 4), (5, 4), 5),
        ("layers.0.heads.1.value", (5, 1, 8), (5, 8), 5),
        ("layers.0.heads.1.out", (1, 3, 8, 5), (24, 5), 42),
        ("layers.0.mlp_norm", (5,), (5,), 5),
        ("layers.0.gate", (5, 6), (5, 6), 5),
        ("layers.0.up", (5, 6), (5, 6), 5),
        ("layers.0.up_bias", (6,), (6,), 5),
        ("layers.0.down", (6, 5), (6, 5), 6),
        ("layers.0.down_bias", (5,), (5,), 5),
        ("layers.1.heads.0.out", (1, 3, 4, 5), (12, 5), 12),
        ("layers.1.down", (9, 5), (9, 5), 9),
        ("final_norm", (5,), (5,), 5),
        ("output", (5, 11), (5, 11), 5),
    ],
)
def test_sizes_of_the_example_with_three_queries_per_head(
    name: str, sizes: tuple[int, ...], stored: tuple[int, ...], fan_in: int
) -> None:
    variant = Variant(vocab=11, context=7, gated=True, final_norm=True, queries=3, qkv_bias=True)
    entry = table(EXAMPLE, variant)[name]
    assert (entry.sizes, entry.stored, entry.fan_in) == (sizes, stored, fan_in)


@given(models())
@examples(50)
def test_each_axis_has_the_size_that_the_shape_says(model: tuple[Shape, Variant]) -> None:
    shape, variant = model
    for entry in table(shape, variant).values():
        size = {"h": shape.hidden, "vocab": variant.vocab, "context": variant.context, "q": variant.queries}
        if entry.layer is not None:
            layer = shape.layers[entry.layer]
            size["p"] = layer.mlp
            if entry.heads is not None:
                size["E"] = len(entry.heads)
                size["k"], size["v"] = layer.heads[entry.heads.start]
        assert entry.sizes == tuple(size[axis] for axis in entry.axes)


@given(
    hidden=st.integers(1, 12),
    layers=st.integers(1, 5),
    mlp=st.integers(1, 9),
    heads=st.integers(1, 5),
    key=st.sampled_from([2, 4, 6]),
    value=st.integers(1, 6),
    variant=variants(),
)
@examples(50)
def test_the_parameter_count_of_a_uniform_shape_has_a_closed_form(
    *,
    hidden: int,
    layers: int,
    mlp: int,
    heads: int,
    key: int,
    value: int,
    variant: Variant,
) -> None:
    shape = Shape.uniform(hidden=hidden, layers=layers, mlp=mlp, heads=heads, key=key, value=value)
    q = variant.queries
    attention = hidden * heads * ((q + 1) * key + (q + 1) * value)
    mlp_weights = (3 if variant.gated else 2) * hidden * mlp
    biases = (mlp + hidden) * variant.biases + heads * ((q + 1) * key + value) * variant.qkv_bias
    per_layer = attention + mlp_weights + biases + 2 * hidden
    outside = hidden * (
        variant.vocab * (1 if variant.tied else 2)
        + (variant.context if variant.positions == "learned" else 0)
        + (1 if variant.final_norm else 0)
    )
    assert sum(entry.count for entry in table(shape, variant).values()) == outside + layers * per_layer


# The rules, written out once more from the paper

GAINS = {"attention_norm", "mlp_norm", "final_norm"}
QK_GAINS = {"query_norm", "key_norm"}
BIASES = {"up_bias", "down_bias", "query_bias", "key_bias", "value_bias"}


def test_new_slices_are_zero_where_the_theorems_need_it() -> None:
    zero = {role: set(row.zero) for role, row in ROWS.items() if row.zero}
    assert zero == {
        "embedding": {"h"},
        "positions": {"h"},
        "key": {"k"},
        "key_bias": {"k"},
        "out": {"E", "v", "h"},
        "down": {"p", "h"},
        "down_bias": {"h"},
    }


def test_old_values_scale_in_norm_gains_and_keys_only() -> None:
    power = {role: dict(row.power) for role, row in ROWS.items() if row.power}
    keys = {role: {"k": 0.5} for role in ("key", "key_bias")}
    assert power == {**keys, **{role: {"h": -0.5} for role in GAINS}}


def test_an_inserted_layer_is_closed_by_its_outputs_or_by_its_own_norms() -> None:
    assert {role for role, row in ROWS.items() if row.closes == "before"} == {"out", "down", "down_bias"}
    assert {role for role, row in ROWS.items() if row.closes == "after"} == {"attention_norm", "mlp_norm"}


def test_gains_start_at_one_and_biases_at_zero_and_neither_decays() -> None:
    assert {role: row.start for role, row in ROWS.items() if row.start is not None} == {
        **dict.fromkeys(GAINS | QK_GAINS, 1.0),
        **dict.fromkeys(BIASES, 0.0),
    }
    assert {role for role, row in ROWS.items() if not row.decays} == GAINS | QK_GAINS | BIASES


def test_the_forward_pass_multiplies_by_the_weight_matrices_alone() -> None:
    assert {role for role, row in ROWS.items() if row.multiplies} == {
        "query",
        "key",
        "value",
        "out",
        "gate",
        "up",
        "down",
        "output",
    }


def test_every_row_is_used_and_its_marked_axes_exist() -> None:
    equal = EXAMPLE.with_layers([EXAMPLE.layers[1]])
    everything = table(equal, replace(PAPER, gated=True, final_norm=True, qkv_bias=True, qk_norm=True))
    assert {entry.role for entry in everything.values()} == set(ROWS)
    for entry in everything.values():
        assert entry.row.zero | set(entry.row.power) <= set(entry.axes)
