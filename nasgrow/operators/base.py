"""The base class of operator declarations, and classes for groups of operators with common rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

from nasgrow.errors import UserError
from nasgrow.expansions import EXPANSION_TYPES, Expansion, InsertLayers, Lineage, between, expand, kind_of
from nasgrow.shape import Layer, Shape, Variant
from nasgrow.strict import Strict, with_prefix

Degree = Literal["exact", "nearly", "no"]
"""How far an operator preserves the function: up to rounding, up to a small documented change, or not."""
DEGREES: tuple[Degree, ...] = get_args(Degree)
"""All degrees, best first."""
ALL = frozenset(EXPANSION_TYPES)
"""The names of all expansions."""
ALL_BUT_LAYERS = ALL - {"layers"}
"""The names of the expansions that grow width."""


class Operator(Strict):
    """An operator with its options: the base class of all declarations.

    Attributes:
        grows: The names of the expansions that it supports.
        multiples: The expansions among them whose sizes must be multiplied by whole numbers.
        copies_heads: Whether new heads are copies of old ones, chosen by :func:`copied_heads`.
        whole_width: Whether hidden, mlp and heads must grow together, by one factor.
        mixes_layers: Whether it may combine several old layers into one, so that all must have equal
            sizes.
        learns: Whether it evaluates the model on training batches.
        degree: How far it preserves the function, if that does not depend on its options.
        source: The publication.
    """

    kind: str
    grows: ClassVar[frozenset[str]]
    multiples: ClassVar[frozenset[str]] = frozenset()
    copies_heads: ClassVar[bool] = False
    whole_width: ClassVar[bool] = False
    mixes_layers: ClassVar[bool] = False
    learns: ClassVar[bool] = False
    degree: ClassVar[Degree]
    source: ClassVar[str]

    def __str__(self) -> str:
        """Return the name with all options that are not at their defaults; valid in a file."""
        options = self.model_dump(exclude_defaults=True, exclude={"kind"})
        told = ", ".join(f"{name}={value}" for name, value in options.items())
        return f"{self.kind}({told})" if told else self.kind

    @property
    def preserves(self) -> Degree:
        """How far it preserves the function, with these options."""
        return self.degree

    @property
    def equal_layers(self) -> bool:
        """Whether all layers must have equal sizes where width grows."""
        return False

    def check_kinds(self, kinds: frozenset[str], variant: Variant) -> None:
        """Raise ``UserError`` if one of these expansions is impossible at any size for this variant."""
        for kind in EXPANSION_TYPES:
            if kind in kinds - self.grows:
                able = ", ".join(name for name in EXPANSION_TYPES if name in self.grows)
                raise UserError(f"operator {self.kind} cannot grow {kind}; it grows {able}")
        if "key" in kinds and variant.key_fixed is not None:
            raise UserError(f"key cannot grow: {variant.key_fixed}")

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Raise ``UserError`` if it cannot apply these expansions to the shape ``old``.

        It is also raised if an expansion does not fit the shape.
        """
        self.check_kinds(frozenset(map(kind_of, expansions)), variant)
        new, lineage = expand(old, expansions)
        _check_multiples(self, old, new, lineage)
        if self.copies_heads:
            with_prefix(f"operator {self.kind}", lambda: _check_heads(old, new, lineage, variant))
        count, grown = len(old.layers), len(new.layers)
        copied = self.copied_layers(count, grown) if grown > count else None
        for index, origin in enumerate(copied or ()):
            if new.layers[index] != old.layers[origin]:
                raise UserError(
                    f"operator {self.kind} makes layer {index} a copy of layer {origin}, so it must have "
                    f"{old.layers[origin]}, not {new.layers[index]}"
                )

    def copied_layers(self, old: int, new: int) -> tuple[int, ...] | None:
        """Return the old layer that each layer copies, if the number of layers grows from ``old`` to ``new``.

        None if new layers are not copies, and old layers stay where the event's expansions put them.
        """
        return None

    def flops(self, old: Shape, expansions: Sequence[Expansion], variant: Variant, sequences: int) -> int:
        """Return the FLOPs that the operator executes at an event; 0 unless it learns.

        Args:
            old: The shape before the event.
            expansions: The expansions of the event.
            variant: The kind of transformer.
            sequences: The number of sequences in a batch.
        """
        return 0

    def split(self, kinds: frozenset[str]) -> tuple[tuple[Operator, frozenset[str]], ...]:
        """Return each operator with the expansions among ``kinds`` that it applies.

        This is the operator itself with all of them.
        """
        return ((self, kinds),)

    def parts(
        self, old: Shape, expansions: Sequence[Expansion]
    ) -> tuple[tuple[Operator, tuple[Expansion, ...]], ...]:
        """Return the growths that make up an event, in order: operator and expansions of each."""
        return ((self, tuple(expansions)),)


class Duplicating(Operator):
    """The base class of operators whose new units, including keys and heads, are copies of old ones."""

    copies_heads = True

    def check_kinds(self, kinds: frozenset[str], variant: Variant) -> None:
        """Also refuse keys under RoPE: each pair turns at a different frequency, so a copy would differ."""
        super().check_kinds(kinds, variant)
        if "key" in kinds and variant.positions == "rope":
            raise UserError(
                f"operator {self.kind} cannot grow key under rope, where a copied pair would turn differently"
            )


class WidthThenDepth(Operator):
    """The base class of operators that grow width first and then copy the widened layers."""

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Raise ``UserError`` if it cannot apply one of the two growths of an event."""
        for _, share in self.parts(old, expansions):
            super().check(old, share, variant)
            old = expand(old, share)[0]

    def parts(
        self, old: Shape, expansions: Sequence[Expansion]
    ) -> tuple[tuple[Operator, tuple[Expansion, ...]], ...]:
        """Return the growth of width, then the growth of depth; empty ones are left out."""
        return tuple((self, share) for share in width_and_depth(old, expansions) if share)


class WholeWidth(Operator):
    """The base class of operators that put full copies of the model side by side.

    Hidden size, MLP widths and numbers of heads all grow by the same integer factor. Heads keep their
    sizes.
    """

    whole_width = True

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Also raise ``UserError`` if width grows, but not to full copies of the model."""
        super().check(old, expansions, variant)
        if not ALL_BUT_LAYERS & set(map(kind_of, expansions)):
            return
        new = expand(old, expansions)[0]
        times = new.hidden // old.hidden
        whole = (Layer.of_heads(times * layer.mlp, layer.heads * times) for layer in old.layers)
        if old.with_layers(whole).layers != new.layers or new.hidden == old.hidden:
            raise UserError(
                f"operator {self.kind} puts full copies of the model side by side, so hidden, mlp and heads "
                f"must grow by one factor, not from {old} to {new}"
            )


def copied_heads(old: Shape, new: Shape, layer: int, origin: int, *, equal_keys: bool) -> tuple[int, ...]:
    """Return, for each head of a grown layer, the old head that it copies.

    Old heads copy themselves. A new head copies the old head that fits and has the fewest copies. An
    old head fits if its key and value sizes are no larger than those of the new head.

    Args:
        old: The shape before.
        new: The shape after.
        layer: The layer of ``new``.
        origin: The layer of ``old`` that it continues.
        equal_keys: Whether an old head fits only if its key size is equal. RoPE needs this, because
            key units cannot be duplicated under it.

    Raises:
        UserError: No old head fits some new head.
    """
    before, after = old.layers[origin].heads, new.layers[layer].heads
    chosen = list(range(len(before)))
    copies = Counter(chosen)
    for key, value in after[len(before) :]:
        fitting = [
            head
            for head, (k, v) in enumerate(before)
            if v <= value and (k == key if equal_keys else k <= key)
        ]
        if not fitting:
            raise UserError(
                f"a new head of layer {layer} copies an old one, and none fits into key {key}, value {value}"
            )
        chosen.append(min(fitting, key=copies.__getitem__))
        copies[chosen[-1]] += 1
    return tuple(chosen)


def interleaved(old: int, new: int) -> tuple[int, ...]:
    """Return the old layer that each layer copies, if each old layer is followed by its copies."""
    return tuple(index * old // new for index in range(new))


def width_and_depth(
    old: Shape, expansions: Sequence[Expansion]
) -> tuple[tuple[Expansion, ...], tuple[Expansion, ...]]:
    """Split an event's expansions into those of width and, to be applied after them, of depth.

    Both are in the canonical form of :func:`nasgrow.expansions.between`, and may be empty.
    """
    new, lineage = expand(old, expansions)
    places = [place for place, origin in enumerate(lineage) if origin is not None]
    ordered = between(old, new, places)  # inserts layers last
    width = tuple(expansion for expansion in ordered if not isinstance(expansion, InsertLayers))
    return width, ordered[len(width) :]


def _distinct(old: Shape, new: Shape, lineage: Lineage) -> list[tuple[int, int]]:
    """Return (new index, old index) of the layers that continue old ones, without repetitions.

    If several layers have the same old sizes and the same new sizes, only the first is returned.
    """
    found: dict[tuple[Layer, Layer], tuple[int, int]] = {}
    for layer, origin in enumerate(lineage):
        if origin is not None:
            found.setdefault((old.layers[origin], new.layers[layer]), (layer, origin))
    return list(found.values())


def _check_heads(old: Shape, new: Shape, lineage: Lineage, variant: Variant) -> None:
    for layer, origin in _distinct(old, new, lineage):
        copied_heads(old, new, layer, origin, equal_keys=variant.positions == "rope")


def _check_multiples(operator: Operator, old: Shape, new: Shape, lineage: Lineage) -> None:
    pairs = [("hidden", old.hidden, new.hidden), ("layers", len(old.layers), len(new.layers))]
    for index, origin in _distinct(old, new, lineage) if operator.multiples else ():
        before, layer = old.layers[origin], new.layers[index]
        pairs += [("mlp", before.mlp, layer.mlp), ("heads", before.head_count, layer.head_count)]
        for (k, v), (key, value) in zip(before.heads, layer.heads, strict=False):
            pairs += [("key", k, key), ("value", v, value)]
    for kind, size, grown in pairs:
        if kind in operator.multiples and grown % size:
            raise UserError(
                f"operator {operator.kind} grows {kind} by integer factors, not from {size} to {grown}"
            )
