"""Operators: how the new parameters of an event get their values. Declarations; no torch.

An operator is declared here and implemented in :mod:`nasgrow.growth.operators`. The declaration is what a
file may say (its options), which of the six expansions it can do, how far it preserves the function, and what
an event costs with it: enough to refuse a run, and to charge it, before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from nasgrow.expansions import (
    KINDS,
    Expansion,
    InsertLayers,
    Lineage,
    between,
    expand,
    kind_of,
)
from nasgrow.flops import step_flops
from nasgrow.params import table
from nasgrow.shape import Layer, Shape, Variant
from nasgrow.strict import Strict, with_prefix

Degree = Literal["exact", "nearly", "no"]
"""How far an operator preserves the function: to rounding, up to a small change that it explains, or not."""
DEGREES: tuple[Degree, ...] = get_args(Degree)
ALL = frozenset(KINDS)
WIDTH = ALL - {"layers"}


class Operator(Strict):
    """An operator with its options: the base of all declarations.

    Attributes:
        grows: The names of the expansions that it can do.
        multiples: Of these, those whose sizes it can only multiply by whole numbers.
        copies_heads: Whether new heads are copies of old ones, as :func:`copied_heads` says.
        whole_width: Whether width grows only as a whole: hidden, mlp and heads by one factor.
        mixes_layers: Whether a layer may be made of several old ones, so that all must be equal.
        learns: Whether it looks at what the model computes.
        source: Where it was published.
    """

    kind: str
    grows: ClassVar[frozenset[str]]
    multiples: ClassVar[frozenset[str]] = frozenset()
    copies_heads: ClassVar[bool] = False
    whole_width: ClassVar[bool] = False
    mixes_layers: ClassVar[bool] = False
    learns: ClassVar[bool] = False
    source: ClassVar[str]

    @property
    def preserves(self) -> Degree:
        """How far it preserves the function, with these options."""
        raise NotImplementedError

    @property
    def equal_layers(self) -> bool:
        """Whether all layers must have equal sizes where width grows."""
        return False

    def check_kinds(self, kinds: frozenset[str], variant: Variant) -> None:
        """Raise ``ValueError`` if it cannot do these expansions to a model of this variant, at any size."""
        for kind in KINDS:
            if kind in kinds - self.grows:
                able = ", ".join(name for name in KINDS if name in self.grows)
                raise ValueError(f"operator {self.kind} cannot grow {kind}; it grows {able}")

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Raise ``ValueError`` if it cannot do an event."""
        self.check_kinds(frozenset(map(kind_of, expansions)), variant)
        new, lineage = expand(old, expansions)
        _check_multiples(self, old, new, lineage)
        if self.copies_heads:
            with_prefix(f"operator {self.kind}", lambda: _check_heads(old, new, lineage, variant))
        count, grown = len(old.layers), len(new.layers)
        copied = self.copied_layers(count, grown) if grown > count else None
        for index, origin in enumerate(copied or ()):
            if new.layers[index] != old.layers[origin]:
                raise ValueError(
                    f"operator {self.kind} makes layer {index} a copy of layer {origin}, so it must have "
                    f"{old.layers[origin]}, not {new.layers[index]}"
                )

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """The old layer that each layer is a copy of, where ``old`` layers become ``new``.

        None, if old layers stay where the event leaves them, and new ones are not copies.
        """
        return None

    def flops(
        self, old: Shape, expansions: Sequence[Expansion], variant: Variant, sequences: int, length: int
    ) -> int:
        """What an event costs in FLOPs, with batches of ``sequences`` sequences of ``length`` tokens."""
        return 0

    def split(self, kinds: frozenset[str]) -> tuple[tuple[Operator, frozenset[str]], ...]:
        """Which operator does which of these expansions."""
        return ((self, kinds),)

    def parts(
        self, old: Shape, expansions: Sequence[Expansion]
    ) -> tuple[tuple[Operator, tuple[Expansion, ...]], ...]:
        """The growths that an event consists of, one after the other."""
        return ((self, tuple(expansions)),)


class Preserve(Operator):
    """Zero slices, rescaled old values, and free parts: the expansions as published.

    Gesmundo & Maile (2023), "Composable Function-preserving Expansions for Transformer Architectures".
    """

    kind: Literal["preserve"] = "preserve"
    init: Literal["fresh", "matched"] = "fresh"
    """Free values: a fresh model's; or those scaled to the root mean square of the tensor's old values."""
    new: Literal["zero", "paired", "split"] = "zero"
    """New units: with zero slices; in pairs that cancel; or as copies that share unevenly with the old."""
    grows = ALL
    source = "Gesmundo & Maile 2023"

    @property
    def preserves(self) -> Degree:
        """Exactly, whatever the free values are."""
        return "exact"


PRESERVE = Preserve()
"""The default."""


class _Duplicating(Operator):
    """What operators have in common whose new units, keys and heads too, are copies of old ones."""

    copies_heads = True

    def check_kinds(self, kinds: frozenset[str], variant: Variant) -> None:
        """Refuse keys under RoPE: it turns each pair of a key at its own frequency, so a copy differs."""
        super().check_kinds(kinds, variant)
        if "key" in kinds and variant.positions == "rope":
            raise ValueError(
                f"operator {self.kind} cannot grow key under rope, where a copied pair would turn differently"
            )


class _WidthThenDepth(Operator):
    """What operators have in common that grow width first and then copy the grown layers."""

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Raise ``ValueError`` if it cannot do one of the two growths of an event."""
        for _, share in self.parts(old, expansions):
            super().check(old, share, variant)
            old = expand(old, share)[0]

    def parts(
        self, old: Shape, expansions: Sequence[Expansion]
    ) -> tuple[tuple[Operator, tuple[Expansion, ...]], ...]:
        """The growth of width, then that of depth; what there is of them."""
        return tuple((self, share) for share in _width_and_depth(old, expansions) if share)


class _WholeWidth(Operator):
    """What operators have in common that put whole copies of the model side by side.

    Hidden size, MLP widths and numbers of heads all grow by one whole factor; heads keep their sizes.
    """

    whole_width = True

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Refuse growth of width that does not make whole copies of the model."""
        super().check(old, expansions, variant)
        if not WIDTH & set(map(kind_of, expansions)):
            return
        new = expand(old, expansions)[0]
        times = new.hidden // old.hidden
        whole = (Layer.of_heads(times * layer.mlp, layer.heads * times) for layer in old.layers)
        if old.with_layers(whole).layers != new.layers or new.hidden == old.hidden:
            raise ValueError(
                f"operator {self.kind} puts whole copies of the model side by side, so hidden, mlp and heads "
                f"must grow by one factor, not from {old} to {new}"
            )


class Net2Net(_Duplicating):
    """Duplicated units whose outgoing weights are divided among them; identity layers.

    Chen, Goodfellow & Shlens (2016), "Net2Net: Accelerating Learning via Knowledge Transfer".
    """

    kind: Literal["net2net"] = "net2net"
    noise: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The standard deviation of the noise on second copies, in root mean squares of the tensor's old values.
    Without any the function is preserved exactly, but copies stay equal for ever."""
    grows = ALL
    source = "Chen et al. 2016"

    @property
    def preserves(self) -> Degree:
        """Exactly without noise."""
        return "nearly" if self.noise else "exact"


class Bert2Bert(_Duplicating, _WidthThenDepth):
    """Duplicated units, or in their place units of the next layer; depth by stacking.

    Chen et al. (2022), "bert2BERT: Towards Reusable Pretrained Language Models".
    """

    kind: Literal["bert2bert"] = "bert2bert"
    init: Literal["fpi", "aki"] = "aki"
    """New units: copies of the layer's own (function-preserving initialisation), or what the next layer has
    in their place (advanced knowledge initialisation)."""
    grows = ALL
    source = "Chen et al. 2022"

    @property
    def preserves(self) -> Degree:
        """Not: stacked layers act twice, and units of the next layer do something else."""
        return "no"

    @property
    def equal_layers(self) -> bool:
        """Where new units come from the next layer."""
        return self.init == "aki"

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Refuse unequal layers where new units come from the next one."""
        super().check(old, expansions, variant)
        if self.equal_layers and WIDTH & set(map(kind_of, expansions)) and len(set(old.layers)) > 1:
            raise ValueError(
                f"operator {self.kind} with init aki takes new units from the next layer, so all layers must "
                f"have equal sizes"
            )

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """All layers in order, as often as they fit; above them the top ones."""
        whole = new - new % old
        return tuple(index % old if index < whole else old - new + index for index in range(new))


class Lemon(_Duplicating):
    """Copies with unequal shares, so that they part by themselves; closed layers.

    Wang et al. (2023), "LEMON: Lossless Model Expansion".
    """

    kind: Literal["lemon"] = "lemon"
    grows = ALL
    source = "Wang et al. 2023"

    @property
    def preserves(self) -> Degree:
        """Exactly, for any sizes."""
        return "exact"


class HyperClone(_Duplicating):
    """The model tiled by whole factors, with noise that cancels.

    Samragh et al. (2024), "Scaling Smart: Accelerating Large Language Model Pre-training with Small Model
    Initialization", where it is called HyperCloning.
    """

    kind: Literal["hyperclone"] = "hyperclone"
    noise: Annotated[float, Field(ge=0, le=1)] = 0.316
    """The standard deviation of the noise on all copies, in root mean squares of the copied values; by
    default the paper's ratio of 10 dB. Without any, copies stay equal for ever."""
    grows = WIDTH
    multiples = WIDTH
    source = "Samragh et al. 2024"

    @property
    def preserves(self) -> Degree:
        """Exactly, with noise or without."""
        return "exact"


class Fusion(_WholeWidth):
    """The model side by side with itself: block-diagonal matrices, and the average of what comes out.

    Mazzawi et al. (2023), "Deep Fusion: Efficient Network Training via Pre-trained Initializations". Two
    different models are fused with :func:`nasgrow.growth.fuse`.
    """

    kind: Literal["fusion"] = "fusion"
    noise: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The standard deviation of the values off the diagonal, in root mean squares of the tensor's old values.
    Without any the function is preserved exactly, but the halves stay equal for ever."""
    grows = frozenset({"hidden", "mlp", "heads"})
    multiples = frozenset({"hidden", "mlp", "heads"})
    source = "Mazzawi et al. 2023"

    @property
    def preserves(self) -> Degree:
        """Exactly with zeros off the diagonal."""
        return "nearly" if self.noise else "exact"


class Staged(_WidthThenDepth, _WholeWidth):
    """The model side by side with itself; layers followed by copies of themselves that add nothing.

    Shen et al. (2022), "Staged Training for Transformer Language Models". They double; more is doubling
    again. When they do is a rule for schedules: :mod:`nasgrow.training.slope`.
    """

    kind: Literal["staged"] = "staged"
    grows = frozenset({"hidden", "mlp", "heads", "layers"})
    multiples = frozenset({"hidden", "mlp", "heads", "layers"})
    source = "Shen et al. 2022"

    @property
    def preserves(self) -> Degree:
        """Exactly."""
        return "exact"

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """Each layer as often as it has copies, one after the other."""
        return tuple(index * old // new for index in range(new))


class Stack(Operator):
    """Depth by copying: the whole model on top of itself, layer i being a copy of old layer i mod N.

    Gong et al. (2019), "Efficient Training of BERT by Progressively Stacking"; Du et al. (2024), "Stacking
    Your Transformers", where it is called G_stack.
    """

    kind: Literal["stack"] = "stack"
    grows = frozenset({"layers"})
    source = "Gong et al. 2019; Du et al. 2024"

    @property
    def preserves(self) -> Degree:
        """Not: every copied layer acts once more."""
        return "no"

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """All layers in order, again and again."""
        return tuple(index % old for index in range(new))


class Interleave(Operator):
    """Depth by copying: each layer followed by its copies, layer i being a copy of old layer floor(i N / N^).

    Du et al. (2024), "Stacking Your Transformers", among the operators it compares.
    """

    kind: Literal["interleave"] = "interleave"
    grows = frozenset({"layers"})
    source = "Du et al. 2024"

    @property
    def preserves(self) -> Degree:
        """Not: every copied layer acts once more."""
        return "no"

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """Each layer as often as it has copies, one after the other."""
        return tuple(index * old // new for index in range(new))


class GradMax(Operator):
    """New MLP units with outgoing weights that let the largest gradients through; the rest as `preserve`.

    Evci et al. (2022), "GradMax: Growing Neural Networks using Gradient Information".
    """

    kind: Literal["gradmax"] = "gradmax"
    grows = ALL
    learns = True
    source = "Evci et al. 2022"

    @property
    def preserves(self) -> Degree:
        """Exactly: incoming weights of new units are zero."""
        return "exact"

    def flops(
        self, old: Shape, expansions: Sequence[Expansion], variant: Variant, sequences: int, length: int
    ) -> int:
        """One batch through the grown model and back, and two products for each MLP that is widened."""
        new, lineage = expand(old, expansions)
        widened = widened_mlps(old, new, lineage)
        if not widened:
            return 0
        product = 2 * sequences * length * new.hidden * (new.hidden + (1 if variant.gated else 0))
        return step_flops(new, variant, sequences, length) + len(widened) * product


class Ligo(Operator):
    """A learned linear map from the old parameters to the new ones, factorised by axes and layers.

    Wang et al. (2023), "Learning to Grow Pretrained Models for Efficient Transformer Training".
    """

    kind: Literal["ligo"] = "ligo"
    steps: Annotated[int, Field(ge=1)] = 100
    """Training steps of the map, each on a batch of its own."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Adam's, for the map."""
    grows = ALL
    mixes_layers = True
    learns = True
    source = "Wang et al. 2023"

    @property
    def preserves(self) -> Degree:
        """Not: the map is trained to lower the loss."""
        return "no"

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Refuse to mix layers that are unlike each other."""
        super().check(old, expansions, variant)
        new = expand(old, expansions)[0]
        if len(new.layers) > len(old.layers):
            for when, shape in (("before", old), ("after", new)):
                if len(set(shape.layers)) > 1:
                    unlike = next(layer for layer in shape.layers if layer != shape.layers[0])
                    raise ValueError(
                        f"operator {self.kind} mixes layers where their number grows, so all must be equal; "
                        f"{when} the event there are {shape.layers[0]} and {unlike}"
                    )

    def flops(
        self, old: Shape, expansions: Sequence[Expansion], variant: Variant, sequences: int, length: int
    ) -> int:
        """The steps, each with its products of the map, forward and backward; and the map once more.

        A step counts whole. Where no map touches a tensor its gradient is not computed, so that an event
        which leaves the hidden size as it is costs a little less than it is charged.
        """
        new = expand(old, expansions)[0]
        once, learning = _map_flops(old, new, variant)
        return self.steps * (step_flops(new, variant, sequences, length) + learning) + once


class Masked(Operator):
    """The expansions of `preserve`, with fresh values behind masks that open in place of zero slices.

    Yao et al. (2023), "Masked Structural Growth for 2x Faster Language Model Pre-training".
    """

    kind: Literal["masked"] = "masked"
    opening: Annotated[float, Field(gt=0, le=1)] = 0.1
    """The fraction of the budget over which masks open after an event; at most half of what is left."""
    grows = ALL
    source = "Yao et al. 2023"

    @property
    def preserves(self) -> Degree:
        """Exactly, at the event: masks are closed."""
        return "exact"


_Tagged: TypeAlias = (
    Annotated[Preserve, Tag("preserve")]
    | Annotated[Net2Net, Tag("net2net")]
    | Annotated[Bert2Bert, Tag("bert2bert")]
    | Annotated[Lemon, Tag("lemon")]
    | Annotated[HyperClone, Tag("hyperclone")]
    | Annotated[Fusion, Tag("fusion")]
    | Annotated[Staged, Tag("staged")]
    | Annotated[Stack, Tag("stack")]
    | Annotated[Interleave, Tag("interleave")]
    | Annotated[GradMax, Tag("gradmax")]
    | Annotated[Ligo, Tag("ligo")]
    | Annotated[Masked, Tag("masked")]
)
OPERATORS: Mapping[str, type[Operator]] = {
    cls.model_fields["kind"].default: cls for cls, _ in map(get_args, get_args(_Tagged))
}
"""Every operator by its name."""


PAIR = " + "
"""Stands between the names of two operators: width, then depth."""


def _named(data: object) -> object:
    """What a name stands for, with options (``net2net(noise=0)``) or without; two of them are a pair."""
    if not isinstance(data, str):
        return data
    width, plus, depth = data.partition(PAIR)
    if plus:
        return {"width": width, "depth": depth}
    given = re.fullmatch(r"(\w+)\((.+)\)", data)
    if given is None:
        return {"kind": data}
    options = (option.partition("=") for option in given[2].split(","))
    return {"kind": given[1], **{name.strip(): _value(text.strip()) for name, _, text in options}}


def _value(text: str) -> object:
    """A number, or a name."""
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return text


def _tag(data: object) -> str | None:
    """The tag of an operator: its kind, or ``pair``, which has none."""
    if isinstance(data, WidthAndDepth) or (isinstance(data, dict) and data.keys() & {"width", "depth"}):
        return "pair"
    kind = data.get("kind") if isinstance(data, dict) else getattr(data, "kind", None)
    return kind if isinstance(kind, str) and kind in OPERATORS else None


def _discriminator(more: str) -> Any:
    names = ", ".join(OPERATORS)
    return Discriminator(
        _tag,
        custom_error_type="operator",
        custom_error_message=f"must be one of {names}, or a mapping with one as its kind{more}",
    )


Single = Annotated[_Tagged, _discriminator(""), BeforeValidator(_named)]
"""One operator as a file gives it: a name, or a mapping with ``kind`` and options."""


class WidthAndDepth(Strict):
    """Two operators: one for layers, one for everything else. An event that grows both grows width first."""

    width: Single
    depth: Single

    @model_validator(mode="after")
    def _sees_masks(self) -> Self:
        for one, other in ((self.width, self.depth), (self.depth, self.width)):
            if isinstance(one, Masked) and other.learns:
                raise ValueError(
                    f"operator {other.kind} looks at the model, and cannot see the masks of masked"
                )
        return self

    @property
    def kind(self) -> str:
        """Both names."""
        return f"{self.width.kind}{PAIR}{self.depth.kind}"

    @property
    def preserves(self) -> Degree:
        """What the worse of the two does."""
        return max(self.width.preserves, self.depth.preserves, key=DEGREES.index)

    def check_kinds(self, kinds: frozenset[str], variant: Variant) -> None:
        """Raise ``ValueError`` if one of them cannot do its share of these expansions at any size."""
        for operator, share in self.split(kinds):
            operator.check_kinds(share, variant)

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Raise ``ValueError`` if one of them cannot do its share of an event."""
        for operator, share in self.parts(old, expansions):
            operator.check(old, share, variant)
            old = expand(old, share)[0]

    def flops(
        self, old: Shape, expansions: Sequence[Expansion], variant: Variant, sequences: int, length: int
    ) -> int:
        """What both shares of an event cost in FLOPs."""
        total = 0
        for operator, share in self.parts(old, expansions):
            total += operator.flops(old, share, variant, sequences, length)
            old = expand(old, share)[0]
        return total

    def split(self, kinds: frozenset[str]) -> tuple[tuple[Operator, frozenset[str]], ...]:
        """Which operator does which of these expansions."""
        return ((self.width, kinds & WIDTH), (self.depth, kinds - WIDTH))

    def parts(
        self, old: Shape, expansions: Sequence[Expansion]
    ) -> tuple[tuple[Operator, tuple[Expansion, ...]], ...]:
        """The growth of width, then that of depth; what there is of them."""
        shares = zip((self.width, self.depth), _width_and_depth(old, expansions), strict=True)
        return tuple((operator, share) for operator, share in shares if share)


AnyOperator: TypeAlias = Operator | WidthAndDepth
OperatorField = Annotated[
    _Tagged | Annotated[WidthAndDepth, Tag("pair")],
    _discriminator(", or {width: operator, depth: operator}"),
    BeforeValidator(_named),
]
"""An operator as a file gives it: a name, a mapping with ``kind`` and options, or one for each of two."""


def copied_heads(old: Shape, new: Shape, layer: int, origin: int, variant: Variant) -> tuple[int, ...]:
    """The old head that each head of a grown layer comes from; for new ones those that fit, in turn.

    A head fits whose key and value are no larger. Under RoPE its key must be as large, because keys cannot be
    duplicated there.

    Raises:
        ValueError: None fits some new head.
    """
    before, after = old.layers[origin].heads, new.layers[layer].heads
    chosen = list(range(len(before)))
    for key, value in after[len(before) :]:
        fitting = [
            head
            for head, (k, v) in enumerate(before)
            if v <= value and (k == key if variant.positions == "rope" else k <= key)
        ]
        if not fitting:
            raise ValueError(
                f"a new head of layer {layer} copies an old one, and none fits into key {key}, value {value}"
            )
        chosen.append(min(fitting, key=chosen.count))
    return tuple(chosen)


def _width_and_depth(
    old: Shape, expansions: Sequence[Expansion]
) -> tuple[tuple[Expansion, ...], tuple[Expansion, ...]]:
    """An event as two: its growth of width, and after it that of depth."""
    new, lineage = expand(old, expansions)
    places = [place for place, origin in enumerate(lineage) if origin is not None]
    ordered = between(old, new, places)  # inserts layers last
    width = tuple(expansion for expansion in ordered if not isinstance(expansion, InsertLayers))
    return width, ordered[len(width) :]


_JOINT = {"query": ("h", "q", "Q"), "key": ("h", "K"), "value": ("h", "V"), "out": ("q", "V", "h")}


def joint_axes(shape: Shape, variant: Variant, layer: int | None) -> dict[str, dict[str, int]]:
    """The axes and sizes of the tensors of a layer, or of those of none, with all its heads as one.

    By role. ``Q``, ``K`` and ``V`` run over the units of all heads, one head after the other.
    """
    sizes = {"vocab": shape.vocab, "context": shape.context, "h": shape.hidden, "q": variant.queries}
    if layer is not None:
        heads = shape.layers[layer].heads
        keys, values = (sum(head[which] for head in heads) for which in (0, 1))
        sizes |= {"p": shape.layers[layer].mlp, "Q": keys, "K": keys, "V": values}
    rows = {entry.role: entry.axes for entry in table(shape, variant).values() if entry.layer == layer}
    return {role: {axis: sizes[axis] for axis in _JOINT.get(role, axes)} for role, axes in rows.items()}


def _map_flops(old: Shape, new: Shape, variant: Variant) -> tuple[int, int]:
    """The products of a map by axes and layers: applied once, and applied and differentiated.

    The gradient of a product costs as much again for each factor that has one; old values have none.
    """
    deeper = len(new.layers) > len(old.layers)
    once = learning = 0
    pairs: list[tuple[int | None, int | None]] = [(None, None)]
    pairs += [(0, 0)] * len(old.layers) if deeper else [(layer, layer) for layer in range(len(old.layers))]
    for own, layer in pairs:
        after = joint_axes(new, variant, layer)
        for role, axes in joint_axes(old, variant, own).items():
            size, mapped = prod(axes.values()), False
            for axis, before in axes.items():
                if (grown := after[role][axis]) > before:
                    once += 2 * size * grown
                    learning += (3 if mapped else 2) * 2 * size * grown
                    size, mapped = size // before * grown, True
            if deeper and layer is not None:
                once += 2 * size * len(new.layers)
                learning += (3 if mapped else 2) * 2 * size * len(new.layers)
    return once, learning


def widened_mlps(old: Shape, new: Shape, lineage: Lineage) -> dict[int, int]:
    """The old MLP width of each layer of the grown model whose MLP is widened."""
    return {
        layer: old.layers[origin].mlp
        for layer, origin in enumerate(lineage)
        if origin is not None and old.layers[origin].mlp < new.layers[layer].mlp
    }


def _check_heads(old: Shape, new: Shape, lineage: Lineage, variant: Variant) -> None:
    for layer, origin in enumerate(lineage):
        if origin is not None:
            copied_heads(old, new, layer, origin, variant)


def _check_multiples(operator: Operator, old: Shape, new: Shape, lineage: Lineage) -> None:
    pairs = [("hidden", old.hidden, new.hidden), ("layers", len(old.layers), len(new.layers))]
    for layer, origin in zip(new.layers, lineage, strict=True):
        if origin is not None:
            before = old.layers[origin]
            pairs += [("mlp", before.mlp, layer.mlp), ("heads", before.head_count, layer.head_count)]
            for (k, v), (key, value) in zip(before.heads, layer.heads, strict=False):
                pairs += [("key", k, key), ("value", v, value)]
    for kind, size, grown in pairs:
        if kind in operator.multiples and grown % size:
            raise ValueError(
                f"operator {operator.kind} grows {kind} by whole factors, not from {size} to {grown}"
            )
