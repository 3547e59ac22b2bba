"""A second forward pass, to hold the model to: plain loops, straight from Gesmundo & Maile (2023), section 2.

One sequence at a time, one position at a time, in float64. Parameters are named and stored as in
``nasgrow.params.table``; where a variant departs from the paper, the docstring says how.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nasgrow.shape import HeadGroup, Layer, Shape, Variant

Array = NDArray[np.float64]
Vectors = list[Array]
"""One vector per position."""


def logits(parameters: Mapping[str, Array], shape: Shape, variant: Variant, tokens: Sequence[int]) -> Array:
    """Equation 1: layers applied in turn to I + P, then the product with W^out; shape (s, vocab).

    I is the embedding of the tokens. P is there for learned positions only, the last norm only if the
    variant has one, and W^out is the transposed embedding if tied.
    """
    stream: Vectors = [parameters["embedding"][token] for token in tokens]
    if variant.positions == "learned":
        stream = [x + parameters["positions"][i] for i, x in enumerate(stream)]
    for n, layer in enumerate(shape.layers):
        own = _below(parameters, f"layers.{n}.")
        stream = _transformer_layer(own, layer, variant, stream)
    if variant.final_norm:
        stream = _norm(stream, parameters["final_norm"], variant)
    w_out = parameters["embedding"].T if variant.tied else parameters["output"]
    return np.stack([x @ w_out for x in stream])


def _below(parameters: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name[len(prefix) :]: array for name, array in parameters.items() if name.startswith(prefix)}


def _transformer_layer(own: Mapping[str, Array], layer: Layer, variant: Variant, xs: Vectors) -> Vectors:
    """Equation 2: I' = I + MHA(Norm(I)), then I' + MLP(Norm(I')).

    With the norm after the block: I' = I + Norm(MHA(I)), then I' + Norm(MLP(I')).
    """
    if variant.norm == "before":
        xs = _sum(xs, _mha(own, layer, variant, _norm(xs, own["attention_norm"], variant)))
        return _sum(xs, _mlp(own, variant, _norm(xs, own["mlp_norm"], variant)))
    xs = _sum(xs, _norm(_mha(own, layer, variant, xs), own["attention_norm"], variant))
    return _sum(xs, _norm(_mlp(own, variant, xs), own["mlp_norm"], variant))


def _sum(xs: Vectors, ys: Vectors) -> Vectors:
    return [x + y for x, y in zip(xs, ys, strict=True)]


def _mlp(own: Mapping[str, Array], variant: Variant, xs: Vectors) -> Vectors:
    """Equation 3: ReLU(X W1 + b1) W2 + b2, with the variant's activation in ReLU's place.

    Gated: (activation(X Wg) * (X W1 + b1)) W2 + b2.
    """
    result = []
    for x in xs:
        up = x @ own["up"] + (own["up_bias"] if variant.biases else 0)
        inner = _activate(x @ own["gate"], variant) * up if variant.gated else _activate(up, variant)
        result.append(inner @ own["down"] + (own["down_bias"] if variant.biases else 0))
    return result


def _activate(x: Array, variant: Variant) -> Array:
    scalar = {"relu": _relu, "gelu": _gelu, "silu": _silu}[variant.activation]
    return np.array([scalar(float(number)) for number in x])


def _relu(x: float) -> float:
    return max(x, 0.0)


def _gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def _silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def _mha(own: Mapping[str, Array], layer: Layer, variant: Variant, xs: Vectors) -> Vectors:
    """Equation 4, first line: [H_1 ... H_E] W^O, over the heads of all groups in order."""
    heads: list[Vectors] = []
    w_o = []
    for number, group in enumerate(layer.groups):
        tensors = _below(own, f"heads.{number}.")
        tensors |= {name: own[name] for name in ("query_norm", "key_norm") if name in own}
        heads += _heads(tensors, group, variant, xs)
        w_o.append(tensors["out"])
    stacked = np.concatenate(w_o)
    return [np.concatenate([head[i] for head in heads]) @ stacked for i in range(len(xs))]


def _heads(tensors: Mapping[str, Array], group: HeadGroup, variant: Variant, xs: Vectors) -> list[Vectors]:
    """Equation 4, second line: H_e = Attention(X W^Q_e, X W^K_e, X W^V_e), for every e of one group.

    Under grouped-query attention head e gives ``variant.queries`` results in a row, each with its own W^Q.
    Projections have biases, and queries and keys a norm, if the variant has them.
    """

    def projected(name: str, block: int, width: int) -> Vectors:
        bias = tensors[f"{name}_bias"][block * width : (block + 1) * width] if variant.qkv_bias else 0
        vectors = [x @ _columns(tensors[name], block, width) + bias for x in xs]
        if not variant.qk_norm or name == "value":
            return vectors
        mean = [math.fsum(number**2 for number in vector.tolist()) / width for vector in vectors]
        return [
            vector * tensors[f"{name}_norm"] / math.sqrt(square + variant.qk_epsilon)
            for vector, square in zip(vectors, mean, strict=True)
        ]

    results = []
    for e in range(group.count):
        keys, values = projected("key", e, group.key), projected("value", e, group.value)
        for which in range(variant.queries):
            queries = projected("query", e * variant.queries + which, group.key)
            results.append(_attention(queries, keys, values, variant))
    return results


def _columns(matrix: Array, block: int, width: int) -> Array:
    return matrix[:, block * width : (block + 1) * width]


def _attention(queries: Vectors, keys: Vectors, values: Vectors, variant: Variant) -> Vectors:
    """Equation 4, third line: Softmax(Q K^T / sqrt(k)) V.

    Causal: position i sees positions 0 to i alone. RoPE: queries and keys are turned first.
    """
    if variant.positions == "rope":
        queries = [_turn(query, i, variant) for i, query in enumerate(queries)]
        keys = [_turn(key, i, variant) for i, key in enumerate(keys)]
    result = []
    for i, query in enumerate(queries):
        seen = i + 1 if variant.causal else len(keys)
        scores = [float(query @ keys[j]) / math.sqrt(len(query)) for j in range(seen)]
        weights = [math.exp(score - max(scores)) for score in scores]
        mixed = np.zeros_like(values[0])
        for j in range(seen):
            mixed = mixed + weights[j] / math.fsum(weights) * values[j]
        result.append(mixed)
    return result


def _turn(x: Array, position: int, variant: Variant) -> Array:
    """RoPE: coordinates (2i, 2i + 1), as a complex number, times e^(j position base^-c(i)).

    Or by the variant's own frequencies in place of base^-c(i).
    """
    result = np.empty_like(x)
    for pair in range(len(x) // 2):
        frequency = variant.rope_base ** -_van_der_corput(pair)
        if variant.rope_frequencies is not None:
            frequency = variant.rope_frequencies[pair]
        angle = position * frequency
        turned = complex(x[2 * pair], x[2 * pair + 1]) * cmath.exp(1j * angle)
        result[2 * pair], result[2 * pair + 1] = turned.real, turned.imag
    return result


def _van_der_corput(index: int) -> float:
    """The binary digits of ``index`` mirrored at the point: 0, 1/2, 1/4, 3/4, 1/8, ..."""
    total, weight = 0.0, 0.5
    while index:
        index, digit = divmod(index, 2)
        total += digit * weight
        weight /= 2
    return total


def _norm(xs: Vectors, gain: Array, variant: Variant) -> Vectors:
    """Equation 5: x_j g_j / sqrt(sum of squares / h), with epsilon added to the sum."""
    result = []
    for x in xs:
        squares = math.fsum(float(number) ** 2 for number in x)
        result.append(x * gain / math.sqrt((squares + variant.epsilon) / len(x)))
    return result
