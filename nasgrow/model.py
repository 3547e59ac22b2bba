"""The transformer of Gesmundo & Maile (2023), section 2, and its variants.

The modules only hold parameters; what they are and how they start is read off the parameter table.

Shape legend: b batch, s sequence, h hidden, E heads of a group, q queries per head, k key size, v value size,
p MLP width, V vocabulary, n = E * q queries, f pairs of a key (k / 2).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from nasgrow.params import Entry, table
from nasgrow.shape import HeadGroup, Layer, Shape, Variant

Initialiser = Callable[[Entry, tuple[int, ...], torch.Generator], Tensor]
"""Gives values for a box of the given sizes in a tensor of the table."""

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def generator_for(seed: int, name: str) -> torch.Generator:
    """A random stream for one tensor: it depends on ``seed`` and the tensor's name alone."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


def fresh(entry: Entry, sizes: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """A fresh model's values: the row's constant, or uniform with variance ``1 / fan_in``.

    Uniform because it draws several times faster than normal. Always on the CPU in float32, so that the
    values do not depend on the model's device or dtype.
    """
    if entry.row.start is not None:
        return torch.full(sizes, entry.row.start)
    bound = math.sqrt(3 / entry.fan_in)
    return torch.empty(sizes).uniform_(-bound, bound, generator=generator)


def pair_frequencies(pairs: int, base: float) -> list[float]:
    """RoPE's frequency for each pair of a key, the same for every key size.

    Pair i turns at ``base ** -c(i)``, where c is the van der Corput sequence 0, 1/2, 1/4, 3/4, 1/8, ...: a
    larger key adds frequencies between those it has, and none of the old ones moves. For key sizes that are
    powers of two the set is RoPE's own, in another order.
    """

    def van_der_corput(index: int) -> float:
        digits = f"{index:b}"[::-1]
        return int(digits, 2) / (1 << len(digits))

    return [math.pow(base, -van_der_corput(index)) for index in range(pairs)]


def _split(x_bsn: Tensor, heads: int) -> Tensor:
    """(b, s, heads * size) to (b, heads, s, size)."""
    batch, length, _ = x_bsn.shape
    return x_bsn.view(batch, length, heads, -1).transpose(1, 2)


def _rotate(x_bnsk: Tensor, turn_sf2: Tensor) -> Tensor:
    """Turn neighbouring pairs (2i, 2i + 1) by their angles, given as cosines and sines."""
    even, odd = x_bnsk.reshape(*x_bnsk.shape[:-1], -1, 2).unbind(-1)
    cos_sf, sin_sf = turn_sf2[:, : even.shape[-1]].unbind(-1)
    return torch.stack((even * cos_sf - odd * sin_sf, even * sin_sf + odd * cos_sf), -1).flatten(-2)


class Heads(nn.Module):
    """One group of equal heads: its four tensors."""

    query: nn.Parameter
    key: nn.Parameter
    value: nn.Parameter
    out: nn.Parameter

    def __init__(self, group: HeadGroup, variant: Variant) -> None:
        super().__init__()
        self.group = group
        self.variant = variant

    def forward(self, x_bsh: Tensor, turn_sf2: Tensor | None) -> Tensor:
        """Equation 4 for these heads, summed over them by the output projection."""
        heads, queries = self.group.count, self.variant.queries
        q_bnsk = _split(x_bsh @ self.query, heads * queries)
        k_bEsk = _split(x_bsh @ self.key, heads)  # noqa: N806
        v_bEsv = _split(x_bsh @ self.value, heads)  # noqa: N806
        if turn_sf2 is not None:
            q_bnsk, k_bEsk = _rotate(q_bnsk, turn_sf2), _rotate(k_bEsk, turn_sf2)  # noqa: N806
        y_bnsv = F.scaled_dot_product_attention(
            q_bnsk, k_bEsk, v_bEsv, is_causal=self.variant.causal, enable_gqa=queries > 1
        )
        return y_bnsv.transpose(1, 2).flatten(2) @ self.out


class Block(nn.Module):
    """One transformer layer: attention and MLP, each with its norm, around the residual stream."""

    attention_norm: nn.Parameter
    mlp_norm: nn.Parameter
    gate: nn.Parameter
    up: nn.Parameter
    up_bias: nn.Parameter
    down: nn.Parameter
    down_bias: nn.Parameter

    def __init__(self, layer: Layer, variant: Variant) -> None:
        super().__init__()
        self.variant = variant
        self.heads = nn.ModuleList(Heads(group, variant) for group in layer.groups)

    def forward(self, x_bsh: Tensor, turn_sf2: Tensor | None) -> Tensor:
        """Equation 2; with the norm after the block, the form its appendix mentions."""
        if self.variant.norm == "before":
            x_bsh = x_bsh + self.attention(norm(x_bsh, self.attention_norm, self.variant), turn_sf2)
            return x_bsh + self.mlp(norm(x_bsh, self.mlp_norm, self.variant))
        x_bsh = x_bsh + norm(self.attention(x_bsh, turn_sf2), self.attention_norm, self.variant)
        return x_bsh + norm(self.mlp(x_bsh), self.mlp_norm, self.variant)

    def attention(self, x_bsh: Tensor, turn_sf2: Tensor | None) -> Tensor:
        """Equation 4: the sum over head groups is the product with the stacked output projection."""
        y_bsh: Tensor = self.heads[0](x_bsh, turn_sf2)
        for heads in self.heads[1:]:
            y_bsh = y_bsh + heads(x_bsh, turn_sf2)
        return y_bsh

    def mlp(self, x_bsh: Tensor) -> Tensor:
        """Equation 3, or its gated form."""
        activation = _ACTIVATIONS[self.variant.activation]
        up_bsp = x_bsh @ self.up + self.up_bias
        y_bsp = activation(x_bsh @ self.gate) * up_bsp if self.variant.gated else activation(up_bsp)
        return y_bsp @ self.down + self.down_bias


def norm(x_bsh: Tensor, gain_h: Tensor, variant: Variant) -> Tensor:
    """RMSNorm (equation 5), with the variant's epsilon added to the sum of squares."""
    hidden = x_bsh.shape[-1]
    return F.rms_norm(x_bsh, (hidden,), gain_h, variant.epsilon / hidden)


class Transformer(nn.Module):
    """A transformer of a given shape and variant, with fresh parameters drawn from ``seed``."""

    embedding: nn.Parameter
    positions: nn.Parameter
    final_norm: nn.Parameter
    output: nn.Parameter

    def __init__(
        self,
        shape: Shape,
        variant: Variant | None = None,
        *,
        seed: int = 0,
        init: Initialiser = fresh,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.variant = variant or Variant()
        parameters = {}
        for name, entry in table(shape, self.variant).items():
            values = init(entry, entry.sizes, generator_for(seed, name)).reshape(entry.stored)
            parameters[name] = nn.Parameter(values.to(device=device, dtype=dtype))
        self.install(shape, parameters)

    def install(self, shape: Shape, parameters: Mapping[str, nn.Parameter]) -> None:
        """Take on ``shape`` with these parameters, named as in the table."""
        layers = nn.ModuleList(Block(layer, self.variant) for layer in shape.layers)
        for name, parameter in parameters.items():
            path, _, leaf = name.rpartition(".")
            owner = layers.get_submodule(path.removeprefix("layers.")) if path else self
            owner.register_parameter(leaf, parameter)
        self.layers = layers
        self.shape = shape

    def forward(self, tokens_bs: Tensor) -> Tensor:
        """Equation 1: the logits (b, s, V)."""
        length = tokens_bs.shape[1]
        if length > self.shape.context:
            raise ValueError(
                f"a sequence of {length} tokens does not fit the context of {self.shape.context}"
            )
        x_bsh = F.embedding(tokens_bs, self.embedding)
        if self.variant.positions == "learned":
            x_bsh = x_bsh + self.positions[:length]
        turn_sf2 = self._turns(length) if self.variant.positions == "rope" else None
        for layer in self.layers:
            x_bsh = layer(x_bsh, turn_sf2)
        if self.variant.final_norm:
            x_bsh = norm(x_bsh, self.final_norm, self.variant)
        return x_bsh @ (self.embedding.T if self.variant.tied else self.output)

    def _turns(self, length: int) -> Tensor:
        """Cosine and sine of every position's turn of every pair, for the largest key of the model."""
        pairs = max(group.key for layer in self.shape.layers for group in layer.groups) // 2
        frequencies_f = torch.tensor(pair_frequencies(pairs, self.variant.rope_base), dtype=torch.float64)
        angles_sf = torch.outer(torch.arange(length, dtype=torch.float64), frequencies_f)
        return torch.stack((angles_sf.cos(), angles_sf.sin()), -1).to(self.embedding)
