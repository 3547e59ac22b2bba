"""Describe a model by its shape (all sizes that can grow) and its variant (the kind of transformer).

A *shape* holds the sizes that expansions enlarge. A *variant* holds the properties that never change:
vocabulary, context, and the choices of architecture. Both are frozen and hashable, and neither needs
torch. No size is derived from another: ``hidden`` need not be a multiple of anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from sys import float_info
from typing import Any, Literal, TypeGuard, TypeVar, get_args

from nasgrow.errors import UserError

Activation = Literal["relu", "gelu", "silu"]
Positions = Literal["learned", "rope", "none"]
NormPlacement = Literal["before", "after"]
Part = TypeVar("Part")

MAX_SIZE = 10**9
"""The upper limit of every size; it catches typing errors."""
MOST_LAYERS = 1_000
"""The largest number of layers of a shape."""
MOST_HEADS = 1_000
"""The largest number of heads of a layer."""


def positive(value: object, what: str, most: int = MAX_SIZE) -> int:
    """Return ``value`` if it is an integer from 1 to ``most``, else raise a ``UserError`` that quotes it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{what} must be a positive integer, not {value!r}")
    if value > most:
        raise UserError(f"{what} must be at most {most}, not {value}")
    return value


def _all_of(kind: type[Part], given: object, what: str) -> tuple[Part, ...]:
    """Return ``given`` as a tuple of one or more ``kind``.

    Raises:
        UserError: It is something else. The message begins with ``what``.
    """
    parts = tuple(given) if isinstance(given, Iterable) else (given,)
    if not isinstance(given, Iterable) or not parts or not all(isinstance(part, kind) for part in parts):
        wrong = given if not isinstance(given, Iterable) else parts
        raise UserError(f"{what} needs a tuple of at least one {kind.__name__}, not {wrong!r}")
    return parts


@dataclass(frozen=True)
class HeadGroup:
    """``count`` consecutive heads of equal sizes: key size ``key`` (k) and value size ``value`` (v).

    A head is one key and one value projection with the query projections that read them: one in the paper,
    :attr:`Variant.queries` of them under grouped-query attention.
    """

    count: int
    key: int
    value: int

    def __post_init__(self) -> None:
        positive(self.count, "head count", MOST_HEADS)
        positive(self.key, "key size")
        positive(self.value, "value size")


@dataclass(frozen=True)
class Layer:
    """One transformer layer: MLP width ``mlp`` (p) and its heads, in order.

    ``groups`` is the run-length encoding of the heads, and is normalised on construction: neighbouring
    groups of equal sizes are merged, so layers with the same heads compare equal however they were written.
    """

    mlp: int
    groups: tuple[HeadGroup, ...]

    def __post_init__(self) -> None:
        positive(self.mlp, "MLP width")
        groups = _all_of(HeadGroup, self.groups, "a layer")
        runs = [list(run) for _, run in groupby(groups, key=lambda group: (group.key, group.value))]
        merged = (HeadGroup(sum(g.count for g in run), run[0].key, run[0].value) for run in runs)
        object.__setattr__(self, "groups", tuple(merged))
        positive(self.head_count, "number of heads of a layer", MOST_HEADS)

    @cached_property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """The ``(key, value)`` sizes of each head, in order: the groups written out."""
        return tuple((g.key, g.value) for g in self.groups for _ in range(g.count))

    @property
    def head_count(self) -> int:
        """The number of heads (E)."""
        return sum(group.count for group in self.groups)

    @staticmethod
    def of_heads(mlp: int, heads: Iterable[tuple[int, int]]) -> Layer:
        """Build a layer from the ``(key, value)`` sizes of each head."""
        return Layer(mlp, tuple(HeadGroup(1, key, value) for key, value in heads))

    @property
    def spans(self) -> Iterator[tuple[range, HeadGroup]]:
        """Each group with the range of head indices it covers."""
        start = 0
        for group in self.groups:
            yield range(start, start + group.count), group
            start += group.count

    def __str__(self) -> str:
        heads = " + ".join(f"{g.count}×(k={g.key}, v={g.value})" for g in self.groups)
        return f"p={self.mlp}, heads {heads}"


@dataclass(frozen=True)
class Shape:
    """The sizes of a model: hidden size (h), and its layers in order."""

    hidden: int
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        positive(self.hidden, "hidden size")
        object.__setattr__(self, "layers", _all_of(Layer, self.layers, "a shape"))
        positive(len(self.layers), "number of layers", MOST_LAYERS)

    @staticmethod
    def uniform(*, hidden: int, layers: int, mlp: int, heads: int, key: int, value: int) -> Shape:
        """Return a shape of ``layers`` equal layers, each with ``heads`` equal heads."""
        layer = Layer(mlp, (HeadGroup(heads, key, value),))
        return Shape(hidden, (layer,) * positive(layers, "number of layers", MOST_LAYERS))

    def with_layers(self, layers: Iterable[Layer]) -> Shape:
        """Return the same shape with other layers."""
        return replace(self, layers=tuple(layers))

    def __str__(self) -> str:
        runs = [(str(layer), len(list(run))) for layer, run in groupby(self.layers)]
        layers = "; ".join(f"{count}×[{text}]" for text, count in runs)
        return f"h={self.hidden}, N={len(self.layers)}: {layers}"


def van_der_corput(index: int) -> float:
    """Return element ``index`` of 0, 1/2, 1/4, 3/4, 1/8, ...: its binary digits mirrored at the point."""
    digits = f"{index:b}"[::-1]
    return int(digits, 2) / (1 << len(digits))


def pair_frequencies(pairs: int, base: float) -> list[float]:
    """Return RoPE's frequency for each pair of a key; that of pair i does not depend on the key size.

    Pair i turns at ``base ** -c(i)``, where c is the van der Corput sequence. So a larger key adds
    frequencies between the old ones and changes none of them. For key sizes that are powers of two,
    the set of frequencies is that of standard RoPE, in another order.
    """
    return [pow(base, -van_der_corput(index)) for index in range(pairs)]


def _one_of(value: object, allowed: object, what: str) -> None:
    options = get_args(allowed)
    if value not in options:
        raise UserError(f"{what} must be one of {', '.join(options)}, not {value!r}")


@dataclass(frozen=True)
class Variant:
    """The kind of transformer; the defaults are the architecture of Gesmundo & Maile (2023), made causal.

    Attributes:
        vocab: The number of tokens.
        context: The longest sequence, in tokens; training sequences are as long.
        activation: The MLP's non-linearity.
        gated: The MLP is ``activation(x gate) * (x up + up_bias)`` before its down projection.
        causal: Position i attends to positions up to i; otherwise to all.
        positions: ``learned`` vectors, ``rope`` rotations of queries and keys, or ``none``.
        final_norm: Normalise once more before the output projection.
        tied: The output projection is the token embedding, transposed.
        queries: Query projections that share one head's key and value (grouped-query attention above 1).
        norm: Normalise a block's input (``before``) or its output (``after``).
        epsilon: Added to the *sum* of squares in RMSNorm. The usual epsilon, added to the mean, is
            ``epsilon / h``: stated this way it needs no rescaling when h grows.
        rope_base: RoPE's frequencies are above ``1 / rope_base``, and at most 1.
        biases: The MLP's up and down projections have biases.
        qkv_bias: The query, key and value projections have biases.
        qk_norm: Normalise each query and key (RMSNorm over the key size, before RoPE), with gains that
            the heads of a layer share.
        qk_epsilon: Added to the *mean* of squares in that norm, whose size never grows.
        rope_frequencies: The frequency of each pair of a key. Keys then cannot grow. None: the
            frequencies follow from ``rope_base``.
    """

    vocab: int
    context: int
    activation: Activation = "relu"
    gated: bool = False
    causal: bool = True
    positions: Positions = "learned"
    final_norm: bool = False
    tied: bool = False
    queries: int = 1
    norm: NormPlacement = "before"
    epsilon: float = 1e-4
    rope_base: float = 10_000.0
    biases: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    qk_epsilon: float = 1e-6
    rope_frequencies: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        positive(self.vocab, "vocabulary")
        positive(self.context, "context")
        _one_of(self.activation, Activation, "activation")
        _one_of(self.positions, Positions, "positions")
        _one_of(self.norm, NormPlacement, "norm")
        for name in ("gated", "causal", "final_norm", "tied", "biases", "qkv_bias", "qk_norm"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} must be true or false, not {getattr(self, name)!r}")
        positive(self.queries, "queries per head")
        for name, least in (("epsilon", 0), ("rope_base", 1), ("qk_epsilon", 0)):
            value = getattr(self, name)
            if not _is_number(value) or not least < value <= float_info.max:
                raise UserError(f"{name} must be a finite number above {least}, not {value!r}")
        if self.rope_frequencies is not None:
            self._check_frequencies()

    def _check_frequencies(self) -> None:
        given: object = self.rope_frequencies
        listed = tuple(given) if isinstance(given, list | tuple) else ()
        if not listed or not all(_is_number(one) and 0 <= one <= float_info.max for one in listed):
            raise UserError(f"rope_frequencies must be a list of finite numbers from 0 up, not {given!r}")
        if self.positions != "rope":
            raise UserError(f"rope_frequencies need positions: rope, not {self.positions}")
        object.__setattr__(self, "rope_frequencies", tuple(map(float, listed)))

    def with_context(self, context: int) -> Variant:
        """Return the same variant with this context."""
        return self if context == self.context else replace(self, context=context)

    def check(self, shape: Shape) -> None:
        """Raise ``UserError`` if a model of this variant cannot have ``shape``."""
        pairs = None if self.rope_frequencies is None else len(self.rope_frequencies)
        for index, layer in enumerate(shape.layers):
            for group in layer.groups:
                if self.positions == "rope" and group.key % 2:
                    raise UserError(
                        f"layer {index}: RoPE rotates pairs, so key sizes must be even, not {group.key}"
                    )
                if pairs is not None and group.key != 2 * pairs:
                    raise UserError(
                        f"layer {index}: rope_frequencies lists {pairs} pairs, so key sizes must be "
                        f"{2 * pairs}, not {group.key}"
                    )
                if self.qk_norm and group.key != layer.groups[0].key:
                    raise UserError(
                        f"layer {index}: qk_norm has one gain for all heads, so their key sizes must be "
                        f"equal, not {layer.groups[0].key} and {group.key}"
                    )

    def frequencies(self, pairs: int) -> Sequence[float]:
        """Return the RoPE frequency of each pair, for a key of ``pairs`` pairs.

        If ``rope_frequencies`` are set, return these, whatever ``pairs`` is.
        """
        return self.rope_frequencies or pair_frequencies(pairs, self.rope_base)

    @property
    def key_fixed(self) -> str | None:
        """Why keys of this variant cannot grow; None if they can."""
        if self.qk_norm:
            return "qk_norm normalises over it: new units would have to be zero in query and key, and stay so"
        if self.rope_frequencies is not None:
            return "rope_frequencies lists a frequency for each pair of a key, and has none for new ones"
        return None

    def described(self) -> dict[str, Any]:
        """Return the fields as plain data, for the identity of a run.

        Fields of later releases are left out at their defaults, so that old runs keep their identity.
        """
        return {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default or one.name not in _LATER
        }


_LATER = {"biases", "qkv_bias", "qk_norm", "qk_epsilon", "rope_frequencies"}
"""Fields added after runs had been recorded; see :meth:`Variant.described`."""


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
