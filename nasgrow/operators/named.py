"""Read operators from files: by name, with options, or as a pair, one for width and one for depth."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Self, TypeAlias, get_args

from pydantic import BeforeValidator, Discriminator, Tag, model_validator

from nasgrow.errors import UserError
from nasgrow.expansions import Expansion, expand
from nasgrow.operators.base import ALL_BUT_LAYERS, DEGREES, Degree, Operator, width_and_depth
from nasgrow.operators.declared import (
    Bert2Bert,
    Fusion,
    GradMax,
    HyperClone,
    Interleave,
    Lemon,
    Ligo,
    Masked,
    Net2Net,
    Preserve,
    Random,
    Shuffled,
    Stack,
    Staged,
)
from nasgrow.shape import Shape, Variant
from nasgrow.strict import Strict, parse

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
    | Annotated[Random, Tag("random")]
    | Annotated[Shuffled, Tag("shuffled")]
)
OPERATORS: Mapping[str, type[Operator]] = {
    cls.model_fields["kind"].default: cls for cls, _ in map(get_args, get_args(_Tagged))
}
"""Every operator by its name."""


PAIR = " + "
"""The separator between the two names of a pair: the operator for width, then the one for depth."""


def _named(data: object) -> object:
    """Convert a name, with options (``net2net(noise=0)``) or without, or a pair, into a mapping."""
    if not isinstance(data, str):
        return data
    width, plus, depth = data.partition(PAIR)
    if plus:
        return {"width": width, "depth": depth}
    given = re.fullmatch(r"(\w+)\((.+)\)", data)
    if (given[1] if given else data) not in OPERATORS:
        return data  # pydantic rejects it, and quotes it unchanged
    if given is None:
        return {"kind": data}
    found: dict[str, object] = {"kind": given[1]}
    for option in given[2].split(","):
        name, _, text = (part.strip() for part in option.partition("="))
        if name in found:
            raise UserError(f"must give {name} once")
        found[name] = _value(text)
    return found


def _value(text: str) -> object:
    """Return the text of an option as a number if it is one."""
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return text


def _tag(data: object) -> str | None:
    """Return the tag of an operator for pydantic: its kind, or ``pair``; None if it is unknown."""
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
"""A field for one operator: a name, or a mapping with ``kind`` and options."""


class WidthAndDepth(Strict):
    """Two operators: ``depth`` for layers, ``width`` for all else. An event grows width first."""

    width: Single
    depth: Single

    @model_validator(mode="after")
    def _sees_masks(self) -> Self:
        for one, other in ((self.width, self.depth), (self.depth, self.width)):
            if isinstance(one, Masked) and other.learns:
                raise UserError(
                    f"operator {other.kind} looks at the model, and cannot see the masks of masked"
                )
        return self

    @property
    def kind(self) -> str:
        """The names of both operators."""
        return f"{self.width.kind}{PAIR}{self.depth.kind}"

    def __str__(self) -> str:
        return f"{self.width}{PAIR}{self.depth}"

    @property
    def preserves(self) -> Degree:
        """How far the worse of the two operators preserves the function."""
        return max(self.width.preserves, self.depth.preserves, key=DEGREES.index)

    def check_kinds(self, kinds: frozenset[str], variant: Variant) -> None:
        """Raise ``UserError`` if one of these expansions is impossible at any size for its operator."""
        for operator, share in self.split(kinds):
            operator.check_kinds(share, variant)

    def check(self, old: Shape, expansions: Sequence[Expansion], variant: Variant) -> None:
        """Raise ``UserError`` if one operator cannot apply its part of an event."""
        for operator, share in self.parts(old, expansions):
            operator.check(old, share, variant)
            old = expand(old, share)[0]

    def flops(self, old: Shape, expansions: Sequence[Expansion], variant: Variant, sequences: int) -> int:
        """Return the sum of the FLOPs that the two operators execute at an event."""
        total = 0
        for operator, share in self.parts(old, expansions):
            total += operator.flops(old, share, variant, sequences)
            old = expand(old, share)[0]
        return total

    def split(self, kinds: frozenset[str]) -> tuple[tuple[Operator, frozenset[str]], ...]:
        """Return each operator with the expansions among ``kinds`` that it applies, if any."""
        return ((self.width, kinds & ALL_BUT_LAYERS), (self.depth, kinds - ALL_BUT_LAYERS))

    def parts(
        self, old: Shape, expansions: Sequence[Expansion]
    ) -> tuple[tuple[Operator, tuple[Expansion, ...]], ...]:
        """Return each operator with the expansions that it applies: width first, then depth.

        An operator without expansions is left out.
        """
        shares = zip((self.width, self.depth), width_and_depth(old, expansions), strict=True)
        return tuple((operator, share) for operator, share in shares if share)


AnyOperator: TypeAlias = Operator | WidthAndDepth
OperatorField = Annotated[
    _Tagged | Annotated[WidthAndDepth, Tag("pair")],
    _discriminator(", or {width: operator, depth: operator}"),
    BeforeValidator(_named),
]
"""A field for an operator: a name, a mapping with ``kind`` and options, or a pair of ``width``, ``depth``."""


class _Naming(Strict):
    operator: OperatorField


def operator_from(data: object) -> AnyOperator:
    """Return the operator that the value of the field ``operator`` in a file describes.

    Raises:
        UserError: The operator or one of its options does not exist. The message begins with the field.
    """
    return parse(_Naming, {"operator": data}).operator
