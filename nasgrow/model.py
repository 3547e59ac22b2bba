"""The transformer of Gesmundo & Maile (2023), section 2, and its variants.

The modules only hold parameters. The parameter table defines their shapes and initial values.

Shape legend: b batch, s sequence, t = b * s tokens, h hidden, E heads of a group, q queries per head,
n = E * q queries, k key size, v value size, p MLP width, V vocabulary, f pairs of a key (k / 2).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from nasgrow import fused
from nasgrow.adam_ages import Ages
from nasgrow.errors import UserError
from nasgrow.params import TensorSpec, table
from nasgrow.shape import HeadGroup, Layer, Shape, Variant

Initialiser = Callable[[TensorSpec, tuple[int, ...], torch.Generator], Tensor]
"""Called with a tensor of the parameter table, the sizes of a box of it and a random generator.

Returns values of these sizes.
"""

torch.serialization.add_safe_globals([Ages])  # lets torch.load read optimizer state of grown models

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"relu": F.relu_, "gelu": F.gelu, "silu": F.silu}


def generator_for(seed: int, name: str) -> torch.Generator:
    """Return a random generator for one tensor, which depends on ``seed`` and the tensor's name alone."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


def fresh(entry: TensorSpec, sizes: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return the values of a fresh model: the row's constant, or uniform with variance ``1 / fan_in``.

    Uniform draws are several times faster than normal ones. They are always drawn on the CPU in float32,
    so that the values do not depend on the model's device or dtype.
    """
    if entry.row.start is not None:
        return torch.full(sizes, entry.row.start, dtype=torch.float32, device="cpu")
    bound = math.sqrt(3 / entry.fan_in)
    values = torch.empty(sizes, dtype=torch.float32, device="cpu")
    return values.uniform_(-bound, bound, generator=generator)


def turns(length: int, frequencies: Sequence[float]) -> Tensor:
    """Return RoPE's table (s, f, 2) in float64 on the CPU: cosine and sine of the angle at each position.

    Args:
        length: The number of positions.
        frequencies: The frequency of each pair.
    """
    frequencies_f = torch.tensor(frequencies, dtype=torch.float64, device="cpu")
    angles_sf = torch.outer(torch.arange(length, dtype=torch.float64, device="cpu"), frequencies_f)
    return torch.stack((angles_sf.cos(), angles_sf.sin()), -1)


def _affine(x_th: Tensor, weight_hn: Tensor, bias_n: Tensor | None) -> Tensor:
    """Return ``x @ weight + bias``, or without a bias ``x @ weight``."""
    return x_th @ weight_hn if bias_n is None else torch.addmm(bias_n, x_th, weight_hn)


def _split(x_tn: Tensor, batch: int, heads: int) -> Tensor:
    """Reshape (t, heads * size) to (b, heads, s, size)."""
    return x_tn.view(batch, -1, heads, x_tn.shape[1] // heads).transpose(1, 2)


def _widen(x_bnsk: Tensor, size: int) -> Tensor:
    """Pad the last axis with zeros to ``size``."""
    return F.pad(x_bnsk, (0, size - x_bnsk.shape[-1])) if x_bnsk.shape[-1] < size else x_bnsk


def _add_product(x_th: Tensor, y_tn: Tensor, weight_nh: Tensor) -> Tensor:
    """Return ``x + y @ weight`` from one kernel; under autocast from two, which keeps the precision of x."""
    if torch.is_autocast_enabled(x_th.device.type):
        return x_th + y_tn @ weight_nh
    return torch.addmm(x_th, y_tn, weight_nh)


def _rotate(x_bnsk: Tensor, turn_sf2: Tensor) -> Tensor:
    """Rotate each pair of units (2i, 2i + 1) by its angle, given as cosine and sine."""
    even, odd = x_bnsk.reshape(*x_bnsk.shape[:-1], -1, 2).unbind(-1)
    cos_sf, sin_sf = turn_sf2[:, : even.shape[-1]].unbind(-1)
    return torch.stack((even * cos_sf - odd * sin_sf, even * sin_sf + odd * cos_sf), -1).flatten(-2)


class Cache:
    """A key-value cache for generation with a causal model; it holds ``length`` tokens."""

    def __init__(self) -> None:
        self.length = 0
        self._held: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def extend(self, owner: nn.Module, k_bEsk: Tensor, v_bEsv: Tensor) -> tuple[Tensor, Tensor]:  # noqa: N803
        """Append keys and values of new tokens for the module ``owner``; return those of all.

        ``length`` stays as it is. :meth:`Transformer.residual` updates it after the last layer.
        """
        if owner in self._held:
            k_old, v_old = self._held[owner]
            k_bEsk, v_bEsv = torch.cat((k_old, k_bEsk), 2), torch.cat((v_old, v_bEsv), 2)  # noqa: N806
        self._held[owner] = k_bEsk, v_bEsv
        return k_bEsk, v_bEsv


def groups_before(old: Layer, new: Layer) -> list[int | None]:
    """Return, for each head group of a grown layer, the index of the old group that it continues, or None.

    A group continues an old group if it holds all heads of that group and no other old head. The
    last old group may have gained new heads. A group made by merging or splitting old ones
    continues none.
    """
    before = {heads.start: (number, heads.stop) for number, (heads, _) in enumerate(old.spans)}
    found: list[int | None] = []
    for heads, _ in new.spans:
        number, stop = before.get(heads.start, (None, heads.stop))
        whole = heads.stop == stop or heads.stop > stop == old.head_count
        found.append(number if whole else None)
    return found


def _refill(modules: nn.ModuleList, members: Sequence[nn.Module]) -> None:
    """Replace the members of a module list in place."""
    del modules[:]
    modules.extend(members)


class Heads(nn.Module):
    """One group of equal heads: its four tensors, and biases in variants that have them."""

    query: nn.Parameter
    key: nn.Parameter
    value: nn.Parameter
    out: nn.Parameter
    query_bias: nn.Parameter
    key_bias: nn.Parameter
    value_bias: nn.Parameter

    def __init__(self, group: HeadGroup, variant: Variant) -> None:
        super().__init__()
        self.group = group
        self.variant = variant

    def forward(
        self,
        x_th: Tensor,
        batch: int,
        turn_sf2: Tensor | None,
        cache: Cache | None,
        gains: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return the attention of these heads before the output projection (equation 4): (t, E * q * v).

        Args:
            x_th: The input.
            batch: The number of sequences.
            turn_sf2: RoPE's table for the positions of the input; None without RoPE.
            cache: The key-value cache for generation; None without one.
            gains: The gains that normalise queries and keys, which the heads of a layer share; None
                without ``qk_norm``.
        """
        group, queries = self.group, self.variant.queries
        biases = (
            (self.query_bias, self.key_bias, self.value_bias) if self.variant.qkv_bias else (None, None, None)
        )
        q_bnsk = _split(_affine(x_th, self.query, biases[0]), batch, group.count * queries)
        k_bEsk = _split(_affine(x_th, self.key, biases[1]), batch, group.count)  # noqa: N806
        v_bEsv = _split(_affine(x_th, self.value, biases[2]), batch, group.count)  # noqa: N806
        if gains is not None:
            q_bnsk = F.rms_norm(q_bnsk, (group.key,), gains[0], self.variant.qk_epsilon)
            k_bEsk = F.rms_norm(k_bEsk, (group.key,), gains[1], self.variant.qk_epsilon)  # noqa: N806
        if turn_sf2 is not None:
            q_bnsk, k_bEsk = _rotate(q_bnsk, turn_sf2), _rotate(k_bEsk, turn_sf2)  # noqa: N806
        causal = self.variant.causal
        if cache is not None:
            k_bEsk, v_bEsv = cache.extend(self, k_bEsk, v_bEsv)  # noqa: N806
            causal = cache.length == 0  # a later call has one token, which attends to all before it
        # Fast kernels need keys and values of equal size; padding changes only the default scale.
        size = max(group.key, group.value)
        y_bnsv = F.scaled_dot_product_attention(
            _widen(q_bnsk, size),
            _widen(k_bEsk, size),
            _widen(v_bEsv, size),
            is_causal=causal,
            scale=group.key**-0.5,
            enable_gqa=queries > 1,
        )[..., : group.value]
        return y_bnsv.transpose(1, 2).reshape(x_th.shape[0], -1)


class Block(nn.Module):
    """One transformer layer: attention and MLP, each with its norm, around the residual stream."""

    attention_norm: nn.Parameter
    query_norm: nn.Parameter
    key_norm: nn.Parameter
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

    def regroup(self, old: Layer, new: Layer) -> None:
        """Update the list of head groups after the layer has grown from ``old`` to ``new``.

        A group that continues an old one, as :func:`groups_before` defines it, keeps its module.
        Every other group gets a new module without parameters. :meth:`Transformer.install` calls
        this method, and then registers the parameters.
        """
        modules: list[nn.Module] = []
        for group, number in zip(new.groups, groups_before(old, new), strict=True):
            if number is None:
                modules.append(Heads(group, self.variant).train(self.training))
            else:
                heads = self.heads[number]
                assert isinstance(heads, Heads)
                heads.group = group
                modules.append(heads)
        _refill(self.heads, modules)

    def forward(self, x_th: Tensor, batch: int, turn_sf2: Tensor | None, cache: Cache | None) -> Tensor:
        """Apply the layer to the residual stream: attention first, then the MLP.

        Each of them is x + f(norm(x)), which is equation 2 of the paper. If ``variant.norm`` is
        ``after``, each is x + norm(f(x)), as in the paper's appendix.

        Args:
            x_th: The residual stream, with the tokens of all sequences in one axis.
            batch: The number of sequences.
            turn_sf2: RoPE's table for the positions of the input; None without RoPE.
            cache: The key-value cache for generation; None without one.
        """
        if self.variant.norm == "before":
            normed_th = norm(x_th, self.attention_norm, self.variant)
            x_th = self.attention(normed_th, x_th, batch, turn_sf2, cache)
            return self.mlp(norm(x_th, self.mlp_norm, self.variant), x_th)
        attended_th = self.attention(x_th, None, batch, turn_sf2, cache)
        x_th = x_th + norm(attended_th, self.attention_norm, self.variant)
        return x_th + norm(self.mlp(x_th, None), self.mlp_norm, self.variant)

    def attention(
        self,
        x_th: Tensor,
        onto_th: Tensor | None,
        batch: int,
        turn_sf2: Tensor | None,
        cache: Cache | None,
    ) -> Tensor:
        """Return attention (equation 4) with its output projection, added to ``onto_th`` if given.

        The norm is left to :meth:`forward`, which explains the other arguments; ``onto_th`` itself
        stays as it is. The sum over head groups equals the product with their stacked output
        projections.
        """
        gains = (self.query_norm, self.key_norm) if self.variant.qk_norm else None
        for heads in self.heads:
            assert isinstance(heads, Heads)
            y_tn = heads(x_th, batch, turn_sf2, cache, gains)
            onto_th = y_tn @ heads.out if onto_th is None else _add_product(onto_th, y_tn, heads.out)
        assert onto_th is not None
        return onto_th

    def mlp(self, x_th: Tensor, onto_th: Tensor | None) -> Tensor:
        """Return the MLP (equation 3 or its gated form), added to ``onto_th`` if given.

        The norm is left to :meth:`forward`. ``onto_th`` itself stays as it is.
        """
        biases = self.variant.biases
        relu = self.variant.activation == "relu" and not self.variant.gated
        if relu and biases and onto_th is not None and fused.applies(x_th):
            return fused.relu_mlp(onto_th, x_th, self.up, self.up_bias, self.down, self.down_bias)
        activation = _ACTIVATIONS[self.variant.activation]
        up_tp = _affine(x_th, self.up, self.up_bias if biases else None)
        y_tp = activation(x_th @ self.gate) * up_tp if self.variant.gated else activation(up_tp)
        sum_th = y_tp @ self.down if onto_th is None else _add_product(onto_th, y_tp, self.down)
        return sum_th.add_(self.down_bias) if biases else sum_th


def norm(x_th: Tensor, gain_h: Tensor, variant: Variant) -> Tensor:
    """Return RMSNorm (equation 5), with the variant's epsilon added to the sum of squares."""
    if fused.applies(x_th):
        return fused.rms_norm(x_th, gain_h, variant.epsilon)
    hidden = x_th.shape[-1]
    return F.rms_norm(x_th, (hidden,), gain_h, variant.epsilon / hidden)


def model_with(shape: Shape, variant: Variant, tensors: Mapping[str, Tensor]) -> Transformer:
    """Return a model with these weights, named as in the parameter table; it shares their memory."""
    model = Transformer(shape, variant, init=_nothing, device="meta")
    model.install(shape, {name: nn.Parameter(tensor) for name, tensor in tensors.items()})
    return model


def _nothing(entry: TensorSpec, sizes: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.empty(sizes, device="meta")


class Transformer(nn.Module):
    """A transformer of a given shape and variant, with fresh parameters drawn from ``seed``.

    Like inserted layers, its layers add nothing to the residual stream before training: some of their
    tensors are zero (see ``closes`` in the parameter table).

    Args:
        shape: The sizes.
        variant: The kind of transformer.
        seed: The random generator of each tensor depends on this seed and the tensor's name alone.
        init: Called for the values of each tensor that is not zero.
        dtype: The dtype of all parameters.
        device: The device of all parameters.

    Raises:
        UserError: A model of this variant cannot have this shape.
    """

    embedding: nn.Parameter
    positions: nn.Parameter
    final_norm: nn.Parameter
    output: nn.Parameter
    layers: nn.ModuleList
    shape: Shape
    backend: str | Callable[..., Any] | None = None
    """The backend of ``torch.compile`` for its layers; None if they are not compiled."""
    _kept_turns: Tensor | None = None

    def __init__(
        self,
        shape: Shape,
        variant: Variant,
        *,
        seed: int = 0,
        init: Initialiser = fresh,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        if not isinstance(shape, Shape) or not isinstance(variant, Variant):
            raise UserError(f"a model needs a Shape and a Variant, not {shape!r} and {variant!r}")
        self.variant = variant
        self.layers = nn.ModuleList()
        parameters = {}
        for name, entry in table(shape, variant).items():
            if entry.closed(variant):
                values = torch.zeros(entry.sizes, device="cpu")
            else:
                values = init(entry, entry.sizes, generator_for(seed, name))
            parameters[name] = nn.Parameter(values.reshape(entry.stored).to(device=device, dtype=dtype))
        self.install(shape, parameters)

    def install(
        self, shape: Shape, parameters: Mapping[str, nn.Parameter], lineage: Sequence[int | None] = ()
    ) -> None:
        """Give the model another shape and other parameters.

        Args:
            shape: The new shape.
            parameters: All parameters of the new shape, named as in the parameter table.
            lineage: For each layer, the index of the old layer that it continues, or None if it is
                new. A layer that continues an old one keeps its module with all hooks and
                attributes. By default all layers are new.
        """
        blocks: list[nn.Module] = []
        for layer, origin in zip_longest(shape.layers, lineage):
            if origin is None:
                blocks.append(Block(layer, self.variant).train(self.training))
                continue
            block, before = self.layers[origin], self.shape.layers[origin]
            if before != layer:
                assert isinstance(block, Block)
                block.regroup(before, layer)
            blocks.append(block)
        _refill(self.layers, blocks)
        for name, parameter in parameters.items():
            path, _, leaf = name.rpartition(".")
            self.get_submodule(path).register_parameter(leaf, parameter)
        self.shape = shape
        if self.variant.positions == "rope":
            self._turns()  # computed here, so that a compiled forward pass finds it in the cache

    def forward(self, tokens_bs: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the logits (b, s, V) of tokens (b, s) (equation 1).

        With a cache, the tokens follow those that the cache holds, and are added to it. The first
        call may have any number of tokens, later calls one each. Only causal models support a
        cache.

        Raises:
            UserError: The sequence, with the tokens in the cache, is longer than the context.
        """
        return self.logits(self.residual(tokens_bs, cache)).view(*tokens_bs.shape, -1)

    def residual(self, tokens_bs: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the residual stream (t, h) after the last layer and before the final norm.

        Arguments and errors are those of :meth:`forward`.
        """
        first = 0 if cache is None else cache.length
        end = first + tokens_bs.shape[1]
        if end > self.variant.context:
            raise UserError(f"a sequence of {end} tokens does not fit the context of {self.variant.context}")
        assert cache is None or (self.variant.causal and (first == 0 or tokens_bs.shape[1] == 1))
        x_bsh = F.embedding(tokens_bs, self.embedding)
        if self.variant.positions == "learned":
            x_bsh = x_bsh + self.positions[first:end]
        turn_sf2 = self._turns()[first:end] if self.variant.positions == "rope" else None
        x_th = x_bsh.flatten(0, 1)
        for layer in self.layers:
            x_th = layer(x_th, len(tokens_bs), turn_sf2, cache)
        if cache is not None:
            cache.length = end
        return x_th

    def logits(self, x_th: Tensor) -> Tensor:
        """Return the logits (t, V) of the residual stream."""
        if self.variant.final_norm:
            x_th = norm(x_th, self.final_norm, self.variant)
        return x_th @ (self.embedding.T if self.variant.tied else self.output)

    def _turns(self) -> Tensor:
        """Return RoPE's table for all positions and for the largest key of the model.

        The table is cached until sizes, device or dtype change. It is a plain attribute. It is no parameter,
        because it is not trained, and no buffer, because a model that changes its dtype must recompute it
        from float64.
        """
        pairs = max(group.key for layer in self.shape.layers for group in layer.groups) // 2
        sizes, like, kept = (self.variant.context, pairs, 2), self.embedding, self._kept_turns
        if kept is None or (kept.shape, kept.device, kept.dtype) != (sizes, like.device, like.dtype):
            with torch.inference_mode(False):  # tensors made in inference mode cannot be used in training
                kept = self._kept_turns = turns(sizes[0], self.variant.frequencies(pairs)).to(like)
        return kept
