"""Convert a Hugging Face ``config.json`` to a shape and variant, and back.

A checkpoint is read only if our transformer computes the same function; otherwise the error names the field
that prevents it. The configuration is plain JSON, so nothing here needs ``transformers``.

RoPE: in the library, rows j and j + k/2 of a key are a pair that rotates at ``theta ** (-2 j / k)``. In our
model, units 2i and 2i + 1 are a pair that rotates at ``theta ** -c(i)``, where c is the van der Corput
sequence. If k/2 is a power of two, these are the same pairs in another order. For other keys the frequencies
are listed on reading, and written with ``rope_type: longrope``, which scales each wavelength by a given
factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from nasgrow.errors import UserError
from nasgrow.shape import Activation, Shape, Variant, pair_frequencies, positive, van_der_corput
from nasgrow.strict import read_json, with_prefix

CONFIG = "config.json"

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"max_position_embeddings": 2048, "attention_bias": False, "mlp_bias": False},
    "mistral": {"max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32_768, "num_key_value_heads": 32, "use_sliding_window": False},
    "qwen3": {
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "attention_bias": False,
        "use_sliding_window": False,
    },
    "seed_oss": {
        "max_position_embeddings": 524_288,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_bias": True,
        "attention_out_bias": False,
        "mlp_bias": False,
    },
}
"""The default values of fields in each family that can be read."""

TOKEN_IDS = "bos_token_id", "eos_token_id", "pad_token_id"
"""Fields with the ids of special tokens."""

_PER_LAYER = {"layer_types", "max_window_layers"}
"""Fields that depend on the number of layers. Without them all layers have the same attention, as in every
model that can be read."""

_ALL = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}


@dataclass(frozen=True)
class Layout:
    """The shape and variant of a checkpoint, and how its tensors are stored.

    Attributes:
        shape: The sizes.
        variant: The kind of transformer.
        rows: For each unit of our keys, its row within a head of the checkpoint.
        zeros: The biases of each layer that the checkpoint has and our transformer lacks; they must be zero.
        query_scale: The factor by which queries and keys are multiplied in the checkpoint.
    """

    shape: Shape
    variant: Variant
    rows: tuple[int, ...]
    zeros: tuple[str, ...] = ()
    query_scale: float = 1.0


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration file of a checkpoint.

    Raises:
        UserError: The file cannot be read, or does not hold a mapping.
    """
    path = folder / CONFIG
    config = read_json(path)
    if not isinstance(config, dict):
        raise UserError(f"{path}: must be a mapping of fields, not {type(config).__name__}")
    return config


def read_layout(folder: Path, context: int | None = None) -> Layout:
    """Read the shape, variant and tensor layout of the checkpoint in a folder.

    Args:
        folder: The folder with ``config.json``.
        context: The longest sequence for our model; the checkpoint's by default.

    Raises:
        UserError: The file cannot be read, or our transformer cannot compute the same function, or
            not with this context; the message names the field.
    """
    config = read_config(folder)
    return with_prefix(str(folder / CONFIG), lambda: layout_of(config, context))


def layout_of(config: Mapping[str, Any], context: int | None = None) -> Layout:
    """Return the layout of a checkpoint from its parsed ``config.json``.

    Args:
        config: The configuration. Missing fields have the default values of the model family, but
            vocabulary, hidden and MLP size and the numbers of layers and heads must be given.
        context: The longest sequence for our model; by default the checkpoint's.

    Raises:
        UserError: A field is invalid or missing, or our transformer cannot compute the same
            function, or not with this context. The message names the field but not the file, which
            :func:`read_layout` adds.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UserError(f"model_type: must be one of {', '.join(FAMILIES)}, not {family!r}")
    given = {name: value for name, value in config.items() if value is not None or name == "sliding_window"}
    fields = {**_ALL, **FAMILIES[family], **given}
    if "quantization_config" in fields:
        raise UserError("quantization_config: quantised weights cannot be grown; use the unquantised model")

    def size(name: str) -> int:
        return positive(fields.get(name), name)

    heads, most = size("num_attention_heads"), size("max_position_embeddings")
    groups = positive(fields.get("num_key_value_heads", heads), "num_key_value_heads")
    if heads % groups:
        raise UserError(f"num_key_value_heads: must divide {heads} heads, and {groups} does not")
    hidden = size("hidden_size")
    key = positive(fields.get("head_dim", hidden // heads), "head_dim")
    if key % 2:
        raise UserError(f"head_dim: RoPE rotates pairs, so it must be even, not {key}")
    if context is not None and context > most:
        raise UserError(f"max_position_embeddings: is {most}, less than the context of {context}")
    length = context or most
    _check_windows(fields, length)
    activation = fields["hidden_act"]
    if activation not in get_args(Activation):
        raise UserError(f"hidden_act: must be one of {', '.join(get_args(Activation))}, not {activation!r}")
    epsilon, tied = fields["rms_norm_eps"], _flag(fields, "tie_word_embeddings")
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
        raise UserError(f"rms_norm_eps: must be a finite number above 0, not {epsilon!r}")
    mlp_bias = _flag(fields, "mlp_bias")
    attention_bias = _flag(fields, "attention_bias")
    out_bias = attention_bias if family in ("llama", "qwen3") else _flag(fields, "attention_out_bias")
    base, frequencies = _frequencies(fields, key)
    plain, rows = _rows(base, frequencies)
    variant = Variant(
        vocab=size("vocab_size"),
        context=length,
        activation=activation,
        gated=True,
        positions="rope",
        final_norm=True,
        tied=tied,
        queries=heads // groups,
        epsilon=epsilon * hidden,
        rope_base=base,
        biases=mlp_bias,
        qkv_bias=attention_bias or family == "qwen2",
        qk_norm=family == "qwen3",
        qk_epsilon=epsilon if family == "qwen3" else Variant.qk_epsilon,
        rope_frequencies=None if plain else tuple(frequencies),
    )
    shape = Shape.uniform(
        hidden=hidden,
        layers=size("num_hidden_layers"),
        mlp=size("intermediate_size"),
        heads=groups,
        key=key,
        value=key,
    )
    return Layout(shape, variant, rows, _zeros(mlp_bias=mlp_bias, out_bias=out_bias))


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise UserError(f"{name}: must be true or false, not {value!r}")
    return value


def _zeros(*, mlp_bias: bool, out_bias: bool) -> tuple[str, ...]:
    """Return the biases that the library's layers have and ours lack."""
    return ("mlp.gate_proj.bias",) * mlp_bias + ("self_attn.o_proj.bias",) * out_bias


def _check_windows(fields: Mapping[str, Any], context: int) -> None:
    """Raise ``UserError`` if a sliding window hides earlier tokens of the context."""
    window = fields.get("sliding_window") if fields.get("use_sliding_window", True) else None
    kinds = fields.get("layer_types") or []
    unknown = sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"})
    if unknown:
        raise UserError(f"layer_types: must be full_attention, not {unknown[0]!r}")
    slides = "sliding_attention" in kinds if kinds else window is not None
    if slides and (window is None or positive(window, "sliding_window") < context):
        raise UserError(
            f"sliding_window: attention sees {window} tokens, and the context is {context}; "
            f"a context of at most {window} sees all of them"
        )


def common_window(config: Mapping[str, Any]) -> int | None:
    """Return the sliding window that all layers of a Mistral model share.

    None for other families, for a model that gives the kind of each layer, without a window, or if
    the window covers all positions.
    """
    if config.get("model_type") != "mistral" or config.get("layer_types"):
        return None
    fields = {**FAMILIES["mistral"], **config}
    window, longest = fields["sliding_window"], fields["max_position_embeddings"]
    return window if isinstance(window, int) and isinstance(longest, int) and window < longest else None


def _frequencies(fields: Mapping[str, Any], key: int) -> tuple[float, list[float]]:
    """Return RoPE's base, and the frequency of each pair in the library's order.

    Raises:
        UserError: Our transformer has no such RoPE.
    """
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise UserError(f"rope_parameters: must be a mapping of fields, not {rope!r}")
    where = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    for kind, own in rope.items():
        if isinstance(own, dict):
            raise UserError(f"{where}.{kind}: all layers must have the same RoPE, not one for each kind")

    def number(name: str, default: float | None = None) -> float:
        value = rope.get(name, fields.get(name, default))
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise UserError(f"{where}.{name}: must be a finite number above 0, not {value!r}")
        return float(value)

    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in _SCALED:
        raise UserError(f"{where}.rope_type: must be one of {', '.join(_SCALED)}, not {kind!r}")
    if number("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"{where}.partial_rotary_factor: RoPE must rotate the whole key, so it must be 1")
    base = number("rope_theta", 10_000.0)
    if base <= 1:
        raise UserError(f"{where}.rope_theta: must be above 1, not {base!r}")
    pairs = key // 2
    plain = [pow(base, -pair / pairs) for pair in range(pairs)]
    return base, with_prefix(where, lambda: _SCALED[kind](plain, rope, number))


Number = Callable[..., float]
"""Reads a field of the RoPE section as a finite number above 0: by name, and a default if any."""


def _default(plain: list[float], rope: Mapping[str, Any], number: Number) -> list[float]:
    return plain


def _linear(plain: list[float], rope: Mapping[str, Any], number: Number) -> list[float]:
    factor = number("factor")
    return [one / factor for one in plain]


def _llama3(plain: list[float], rope: Mapping[str, Any], number: Number) -> list[float]:
    """Scale RoPE frequencies like Llama 3.1.

    Long wavelengths are stretched by ``factor``, short ones are kept, and those in between are
    interpolated.

    Args:
        plain: The frequency of each pair, without scaling.
        rope: The checkpoint's RoPE section; unused here.
        number: Reads a field of this section as a finite number above 0.

    Raises:
        UserError: A field is missing or invalid, or ``high_freq_factor`` is not the higher one.
    """
    factor, before = number("factor"), number("original_max_position_embeddings")
    low, high = number("low_freq_factor"), number("high_freq_factor")
    if high <= low:
        raise UserError(f"high_freq_factor: must be above low_freq_factor, {low}, not {high}")

    def stretched(one: float) -> float:
        turns = before * one / (2 * math.pi)
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        return (1 - share) * one / factor + share * one

    return [stretched(one) for one in plain]


def _longrope(plain: list[float], rope: Mapping[str, Any], number: Number) -> list[float]:
    factors = rope.get("short_factor")
    if factors != rope.get("long_factor"):
        raise UserError("long_factor: must equal short_factor: frequencies may not depend on the length")
    if not isinstance(factors, list) or len(factors) != len(plain):
        raise UserError(f"short_factor: must be a list of {len(plain)} numbers")
    if any(isinstance(one, bool) or not isinstance(one, int | float) or not one > 0 for one in factors):
        raise UserError("short_factor: must be numbers above 0")
    if rope.get("attention_factor") != 1.0:
        raise UserError(f"attention_factor: must be 1.0, not {rope.get('attention_factor')!r}")
    return [one / factor for one, factor in zip(plain, factors, strict=True)]


_SCALED: Mapping[str, Callable[[list[float], Mapping[str, Any], Number], list[float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
}


def _paired(first: Sequence[int]) -> tuple[int, ...]:
    """Return the rows of all units of a key, given the row of the first unit of each pair."""
    return tuple(row + half for row in first for half in (0, len(first)))


def _mirrored(pairs: int) -> tuple[int, ...]:
    """Return the index in the library of each of our pairs.

    This holds for default frequencies if the number of pairs is a power of two.
    """
    return tuple(round(van_der_corput(pair) * pairs) for pair in range(pairs))


def _rows(base: float, frequencies: Sequence[float]) -> tuple[bool, tuple[int, ...]]:
    """Return whether the pairs can be ordered so that they have our default frequencies.

    Also return the rows of keys in that order; if there is none, in the order of the library.
    """
    pairs = len(frequencies)
    ours = pair_frequencies(pairs, base)
    orders = [tuple(range(pairs))] + [_mirrored(pairs)] * (pairs & (pairs - 1) == 0)
    for order in orders:
        theirs = [frequencies[row] for row in order]
        if all(math.isclose(a, b, rel_tol=1e-12) for a, b in zip(ours, theirs, strict=True)):
            return True, _paired(order)
    return False, _paired(orders[0])


def config_for(
    shape: Shape, variant: Variant, like: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Layout]:
    """Return the configuration and layout of a checkpoint that computes the same function.

    Args:
        shape: The sizes.
        variant: The kind of transformer.
        like: The configuration of the checkpoint from which this model was grown. If its family can
            represent the model, the family and all unchanged fields are kept; otherwise only the
            ids of special tokens.

    Raises:
        UserError: No model of the library computes it; the message names the field that prevents
            it.
    """
    _check_writable(shape, variant)
    layer, hidden = shape.layers[0], shape.hidden
    group = layer.groups[0]
    heads = group.count * variant.queries
    epsilon = variant.epsilon / hidden
    if variant.qk_norm and math.isclose(epsilon, variant.qk_epsilon, rel_tol=1e-12):
        epsilon = variant.qk_epsilon
    # The library has one epsilon for all norms, but growing h must not change that of queries and keys. So
    # these are scaled: a norm with input c x and epsilon c² e has the same output as with x and e.
    scale = math.sqrt(epsilon / variant.qk_epsilon) if variant.qk_norm else 1.0
    config: dict[str, Any] = {
        "vocab_size": variant.vocab,
        "hidden_size": hidden,
        "intermediate_size": layer.mlp,
        "num_hidden_layers": len(shape.layers),
        "num_attention_heads": heads,
        "num_key_value_heads": group.count,
        "head_dim": group.key,
        "rms_norm_eps": epsilon,
    }
    if like is not None:
        kept = {name: value for name, value in like.items() if name not in _PER_LAYER}
        with suppress(UserError):
            same = layout_of({**kept, **config}, variant.context)
            suits = like["model_type"] != "llama" or hidden % heads == 0
            if suits and same.shape == shape and _plain(same.variant) == _plain(variant):
                return {**kept, **config}, replace(same, variant=variant, query_scale=scale)
        config = {name: like[name] for name in TOKEN_IDS if name in like} | config
    rope, rows = _rope_for(variant, group.key, variant.context)
    config |= {
        "hidden_act": variant.activation,
        "max_position_embeddings": variant.context,
        "tie_word_embeddings": variant.tied,
        "rope_parameters": rope,
        "rope_theta": rope["rope_theta"],  # releases before 5 read this field and the next
        **({} if rope["rope_type"] == "default" else {"rope_scaling": rope}),
        "attention_dropout": 0.0,
    }
    out_bias = False
    if variant.qk_norm:
        family, name = "qwen3", "Qwen3ForCausalLM"
        out_bias = variant.qkv_bias
        config |= {"attention_bias": variant.qkv_bias, "use_sliding_window": False}
    elif variant.qkv_bias and not variant.biases:
        family, name = "qwen2", "Qwen2ForCausalLM"
        config |= {"use_sliding_window": False}
    elif not variant.qkv_bias and hidden % heads == 0:
        family, name = "llama", "LlamaForCausalLM"
        config |= {"attention_bias": False, "mlp_bias": variant.biases}
    elif not variant.qkv_bias and not variant.biases:
        family, name = "mistral", "MistralForCausalLM"
        config |= {"sliding_window": None}
    else:
        family, name = "seed_oss", "SeedOssForCausalLM"
        config |= {"attention_bias": variant.qkv_bias, "attention_out_bias": False}
        config |= {"mlp_bias": variant.biases, "residual_dropout": 0.0}
    layout = Layout(shape, variant, rows, _zeros(mlp_bias=variant.biases, out_bias=out_bias), scale)
    return {"architectures": [name], "model_type": family, **config}, layout


def _plain(variant: Variant) -> Variant:
    """Return the variant with fixed epsilons, which a configuration rescales or rounds."""
    return replace(variant, epsilon=1.0, qk_epsilon=1.0)


def _check_writable(shape: Shape, variant: Variant) -> None:
    """Raise ``UserError`` if no model of the library computes this function."""
    fields = {"gated": True, "causal": True, "positions": "rope", "final_norm": True, "norm": "before"}
    for name, needed in fields.items():
        if (value := getattr(variant, name)) != needed:
            raise UserError(
                f"variant.{name}: the library's models need {needed!r}, and this one has {value!r}"
            )
    if variant.qk_norm and variant.biases:
        raise UserError("variant.biases: the library's models with qk_norm have no biases in the MLP")
    for index, layer in enumerate(shape.layers):
        if layer != shape.layers[0]:
            raise UserError(
                f"layers: the library's are all equal, and layer {index} has {layer}, not {shape.layers[0]}"
            )
    group = shape.layers[0].groups[0]
    if len(shape.layers[0].groups) > 1:
        raise UserError(f"heads: the library's are all equal, not {shape.layers[0]}")
    if group.key != group.value:
        raise UserError(
            f"value: the library's heads have keys and values of one size, not {group.key} and {group.value}"
        )


def _rope_for(variant: Variant, key: int, context: int) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the parameters with which the library's RoPE has our frequencies, and the rows of a key."""
    pairs, base = key // 2, variant.rope_base
    if variant.rope_frequencies is None and pairs & (pairs - 1) == 0:
        return {"rope_type": "default", "rope_theta": base}, _paired(_mirrored(pairs))
    frequencies = variant.frequencies(pairs)
    if min(frequencies) <= 0:
        raise UserError("variant.rope_frequencies: the library's cannot be 0")
    factors = [pow(base, -pair / pairs) / one for pair, one in enumerate(frequencies)]
    rope = {
        "rope_type": "longrope",
        "rope_theta": base,
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
    }
    return rope, _paired(range(pairs))
