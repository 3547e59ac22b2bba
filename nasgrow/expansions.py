"""The six expansions of Gesmundo & Maile (2023): functions from a shape to a larger shape.

An expansion is a frozen dataclass. Calling it with a shape returns the larger shape, or raises a
``UserError`` that says why this is not possible. Sizes are absolute (``to``): layers and heads that already
have the size stay as they are, at least one must grow, and none may shrink. Heads and layers are numbered
from 0. ``layers`` and ``heads`` choose a subset; ``None`` means all. New heads are always appended to a
layer, so a head never changes its number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import ClassVar

from nasgrow.errors import UserError
from nasgrow.shape import MOST_HEADS, MOST_LAYERS, HeadGroup, Layer, Shape, positive

Lineage = tuple[int | None, ...]
"""For each layer of a grown shape, the index of the layer it was before, or None if it is new."""

CACHED_LAYER_PAIRS = 10_000
"""The size of the cache of :func:`_within_layer`, in pairs of layers; schedules repeat few distinct pairs."""


def _indices(given: object, what: str) -> tuple[int, ...]:
    """Return the given indices sorted, with repeats; raise ``UserError`` if they are not valid.

    Valid are 1 to :data:`MOST_LAYERS` integers from 0. ``what`` is their name in messages.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UserError(f"{what} must be a list of indices, not {given!r}")
    indices = tuple(given)
    for index in indices:
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise UserError(f"{what} are numbered from 0, {index!r} is not one")
    if not indices:
        raise UserError(f"{what} must name at least one")
    if len(indices) > MOST_LAYERS:
        raise UserError(f"{what} must name at most {MOST_LAYERS:,}, not {len(indices):,}")
    return tuple(sorted(indices))


def _chosen(given: object, what: str) -> tuple[int, ...] | None:
    """Return the chosen layers or heads, sorted and without repeats; None means all."""
    return None if given is None else tuple(sorted(set(_indices(given, what))))


def _resolve(
    chosen: tuple[int, ...] | None, count: int, what: str, where: str = ""
) -> range | tuple[int, ...]:
    """Return the chosen indices; None chooses all ``count``.

    Raises:
        UserError: An index does not exist. The message begins with ``where``, and ``what`` names
            the indexed thing in it.
    """
    if chosen is None:
        return range(count)
    if chosen[-1] >= count:
        raise UserError(f"{where}there is no {what} {chosen[-1]}; {what}s are numbered 0 to {count - 1}")
    return chosen


def _check_growth(old: Mapping[str, int], to: int, what: str) -> None:
    """Raise ``UserError`` if a size would shrink or if none would grow.

    Args:
        old: The sizes before, by the place to name in the message.
        to: The size after.
        what: The name of the size in the message.
    """
    for where, size in old.items():
        if size > to:
            raise UserError(f"{where}{what} cannot shrink from {size} to {to}")
    if min(old.values()) == to:
        raise UserError(f"{what} is {to} already, it must grow")


def _map_layers(shape: Shape, chosen: Sequence[int], change: Callable[[Layer], Layer]) -> Shape:
    """Return the shape with ``change`` applied to the chosen layers; it is called once for equal layers."""
    changed = {layer: change(layer) for layer in dict.fromkeys(shape.layers[index] for index in chosen)}
    layers = list(shape.layers)
    for index in chosen:
        layers[index] = changed[layers[index]]
    return shape.with_layers(layers)


@dataclass(frozen=True)
class GrowMlp:
    """MLP expansion (Definition and Theorem 3.1): the MLP width p grows to ``to``.

    It grows in each of ``layers``, by default in all.
    """

    to: int
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        positive(self.to, "MLP width")
        object.__setattr__(self, "layers", _chosen(self.layers, "layers"))

    def __call__(self, shape: Shape) -> Shape:
        """Return the larger shape."""
        chosen = _resolve(self.layers, len(shape.layers), "layer")
        _check_growth({f"layer {i}: ": shape.layers[i].mlp for i in chosen}, self.to, "MLP width")
        return _map_layers(shape, chosen, lambda layer: replace(layer, mlp=self.to))


@dataclass(frozen=True)
class AddHeads:
    """Head addition (Definition and Theorem 3.2): the number of heads E grows to ``to``.

    It grows in each of ``layers``, by default in all. New heads follow the old ones. They have key
    size ``key`` and value size ``value``, by default those of the layer's last head.
    """

    to: int
    layers: tuple[int, ...] | None = None
    key: int | None = None
    value: int | None = None

    def __post_init__(self) -> None:
        positive(self.to, "number of heads", MOST_HEADS)
        object.__setattr__(self, "layers", _chosen(self.layers, "layers"))
        if self.key is not None:
            positive(self.key, "key size")
        if self.value is not None:
            positive(self.value, "value size")

    def __call__(self, shape: Shape) -> Shape:
        """Return the larger shape."""
        chosen = _resolve(self.layers, len(shape.layers), "layer")
        counts = {f"layer {i}: ": shape.layers[i].head_count for i in chosen}
        _check_growth(counts, self.to, "number of heads")

        def add(layer: Layer) -> Layer:
            if layer.head_count == self.to:
                return layer
            last = layer.groups[-1]
            new = HeadGroup(self.to - layer.head_count, self.key or last.key, self.value or last.value)
            return replace(layer, groups=(*layer.groups, new))

        return _map_layers(shape, chosen, add)


@dataclass(frozen=True)
class _GrowHeads:
    """The base class of growing values and keys: set one size of the chosen heads to ``to``.

    ``part`` is the index of this size in ``(key, value)``, and ``what`` its name in messages.
    """

    part: ClassVar[int]
    what: ClassVar[str]

    to: int
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        positive(self.to, self.what)
        object.__setattr__(self, "layers", _chosen(self.layers, "layers"))
        object.__setattr__(self, "heads", _chosen(self.heads, "heads"))

    def __call__(self, shape: Shape) -> Shape:
        """Return the larger shape."""
        chosen = _resolve(self.layers, len(shape.layers), "layer")
        distinct: dict[Layer, int] = {}
        for index in chosen:
            distinct.setdefault(shape.layers[index], index)
        old = {
            f"layer {index}, head {head}: ": size
            for layer, index in distinct.items()
            for head, size in self._sizes(layer, f"layer {index}: ")
        }
        _check_growth(old, self.to, self.what)
        return _map_layers(shape, chosen, self._grow)

    def _sizes(self, layer: Layer, where: str) -> Iterator[tuple[int, int]]:
        """Yield the chosen heads and their sizes; if all are chosen, only the first head of each group."""
        if self.heads is None:
            for span, group in layer.spans:
                yield span[0], (group.key, group.value)[self.part]
        else:
            for head in _resolve(self.heads, layer.head_count, "head", where):
                yield head, layer.heads[head][self.part]

    def _grow(self, layer: Layer) -> Layer:
        sizes = [list(head) for head in layer.heads]
        for head in _resolve(self.heads, len(sizes), "head"):
            sizes[head][self.part] = self.to
        return Layer.of_heads(layer.mlp, ((key, value) for key, value in sizes))


@dataclass(frozen=True)
class GrowValues(_GrowHeads):
    """Heads expansion (Definition and Theorem 3.3): the value size grows to ``to``.

    It grows in ``heads`` of each of ``layers``. By default, all heads of all layers grow.
    """

    part = 1
    what = "value size"


@dataclass(frozen=True)
class GrowKeys(_GrowHeads):
    """Attention expansion (Definition and Theorem 3.4): the key and query size grows to ``to``.

    It grows in ``heads`` of each of ``layers``. By default, all heads of all layers grow.
    """

    part = 0
    what = "key size"


@dataclass(frozen=True)
class GrowHidden:
    """Hidden dimension expansion (Definition and Theorem 3.5): h grows to ``to``, in every layer at once."""

    to: int

    def __post_init__(self) -> None:
        positive(self.to, "hidden size")

    def __call__(self, shape: Shape) -> Shape:
        """Return the larger shape."""
        _check_growth({"": shape.hidden}, self.to, "hidden size")
        return replace(shape, hidden=self.to)


@dataclass(frozen=True)
class InsertLayers:
    """Layer addition (Definition and Theorem 3.6): insert one or more new layers at any depth.

    Each entry of ``at`` inserts one layer before the layer that has this index in the old shape; the
    number of layers stands for the end. An index that is given twice inserts two layers. A new layer
    has the sizes ``layer``, or by default those of the layer below it (at the bottom, above it).
    """

    at: tuple[int, ...]
    layer: Layer | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", _indices(self.at, "positions"))
        if self.layer is not None and not isinstance(self.layer, Layer):
            raise UserError(f"the sizes of a new layer must be a Layer, not {self.layer!r}")

    def lineage(self, count: int) -> Lineage:
        """Return the lineage of a shape that has ``count`` layers before the insertion.

        Raises:
            UserError: A position is above ``count``.
        """
        if self.at[-1] > count:
            raise UserError(f"cannot insert a layer at {self.at[-1]}; positions are 0 to {count}")
        new = Counter(self.at)
        origins: list[int | None] = []
        for index in range(count + 1):
            origins += [None] * new[index]
            origins += [index] if index < count else []
        return tuple(origins)

    def __call__(self, shape: Shape) -> Shape:
        """Return the larger shape."""
        layers: list[Layer] = []
        for origin in self.lineage(len(shape.layers)):
            if origin is not None:
                layers.append(shape.layers[origin])
            else:
                layers.append(self.layer or (layers[-1] if layers else shape.layers[0]))
        return shape.with_layers(layers)


Expansion = GrowMlp | AddHeads | GrowValues | GrowKeys | GrowHidden | InsertLayers
"""Any of the six expansions."""

EXPANSION_TYPES: Mapping[str, type[Expansion]] = {
    "hidden": GrowHidden,
    "layers": InsertLayers,
    "mlp": GrowMlp,
    "key": GrowKeys,
    "value": GrowValues,
    "heads": AddHeads,
}
"""The six expansions by their names in files."""


def kind_of(expansion: Expansion) -> str:
    """Return the name of an expansion in files."""
    return next(name for name, cls in EXPANSION_TYPES.items() if type(expansion) is cls)


def expand(shape: Shape, expansions: Iterable[Expansion]) -> tuple[Shape, Lineage]:
    """Apply expansions in order; return the grown shape and the lineage of its layers.

    Raises:
        UserError: One is no expansion, or does not fit the shape that it is applied to.
    """
    lineage: Lineage = tuple(range(len(shape.layers)))
    if not isinstance(expansions, Iterable):
        raise UserError(f"expansions must be a list, not {expansions!r}")
    for expansion in expansions:
        if not isinstance(expansion, Expansion):
            raise UserError(f"{expansion!r} is not one of the six expansions")
        if isinstance(expansion, InsertLayers):
            origins = expansion.lineage(len(shape.layers))
            lineage = tuple(None if origin is None else lineage[origin] for origin in origins)
        shape = expansion(shape)
    return shape, lineage


def diff(old: Shape, new: Shape) -> tuple[Expansion, ...]:
    """Return expansions that turn ``old`` into ``new``; none if the shapes are equal.

    If ``new`` has more layers, each old layer, from the bottom up, is matched with the first layer
    above the last match that it can grow into. So new layers tend to be on top.

    Raises:
        UserError: No sequence of expansions turns ``old`` into ``new``; the message says why.
    """
    for shape in (old, new):
        if not isinstance(shape, Shape):
            raise UserError(f"{shape!r} is not a Shape")
    if new.hidden < old.hidden:
        raise UserError(f"hidden size cannot shrink from {old.hidden} to {new.hidden}")
    if len(new.layers) < len(old.layers):
        raise UserError(f"the number of layers cannot shrink from {len(old.layers)} to {len(new.layers)}")
    places = _match_layers(old.layers, new.layers)
    return between(old, new, places)


def between(old: Shape, new: Shape, places: Sequence[int]) -> tuple[Expansion, ...]:
    """Return the expansions from one shape to another if old layer i becomes layer ``places[i]``.

    The order is fixed. Equal growth of several layers is one expansion. An expansion of all layers, or
    of all heads, does not list them. Layers are inserted last, so all other expansions have the
    layer indices of ``old``. The caller ensures that no size shrinks and that ``places`` ascend.
    """
    assert len(places) == len(old.layers), places
    found: list[Expansion] = [GrowHidden(new.hidden)] if new.hidden > old.hidden else []
    shared: dict[_PerLayer, list[int]] = {}
    for index, place in enumerate(places):
        for expansion in _within_layer(old.layers[index], new.layers[place]):
            shared.setdefault(expansion, []).append(index)
    for expansion, layers in sorted(
        shared.items(), key=lambda item: (_ORDER.index(type(item[0])), item[0].to)
    ):
        found.append(
            expansion if len(layers) == len(old.layers) else replace(expansion, layers=tuple(layers))
        )
    return (*found, *_insertions(new.layers, places))


_PerLayer = GrowMlp | GrowKeys | GrowValues | AddHeads
_ORDER: tuple[type[_PerLayer], ...] = (GrowMlp, GrowKeys, GrowValues, AddHeads)


def _match_layers(old: Sequence[Layer], new: Sequence[Layer]) -> list[int]:
    """Return the layer of ``new`` that each layer of ``old`` becomes.

    It is the first that the old layer can grow into, after the one of the old layer below.

    Raises:
        UserError: An old layer has none.
    """
    places: list[int] = []
    for index, layer in enumerate(old):
        start = places[-1] + 1 if places else 0
        fits = (place for place in range(start, len(new)) if _why_not(layer, new[place]) is None)
        place = next(fits, None)
        if place is None:
            taken = [f"layer {old_index} takes layer {p}" for old_index, p in enumerate(places)]
            reasons = [f"not layer {p}: {_why_not(layer, new[p])}" for p in range(start, len(new))]
            raise UserError(f"layer {index} has nothing to grow into: {'; '.join(taken + reasons)}")
        places.append(place)
    return places


def _why_not(old: Layer, new: Layer) -> str | None:
    """Return the reason why ``old`` cannot grow into ``new``; None if it can."""
    if new.mlp < old.mlp:
        return f"MLP width would shrink from {old.mlp} to {new.mlp}"
    if len(new.heads) < len(old.heads):
        return f"heads would drop from {len(old.heads)} to {len(new.heads)}"
    for index, (before, after) in enumerate(zip(old.heads, new.heads, strict=False)):
        for what, a, b in zip(("key", "value"), before, after, strict=True):
            if b < a:
                return f"{what} size of head {index} would shrink from {a} to {b}"
    return None


def _insertions(new: Sequence[Layer], places: Sequence[int]) -> list[InsertLayers]:
    """Return insertions of the layers of ``new`` that are not at ``places``, one for each distinct layer."""
    present = sorted(places)
    fresh: dict[Layer, list[int]] = {}
    for index in sorted({*range(len(new))} - {*places}):
        fresh.setdefault(new[index], []).append(index)
    found = []
    for layer, indices in fresh.items():
        found.append(InsertLayers(tuple(bisect_left(present, index) for index in indices), layer))
        present = sorted([*present, *indices])
    return found


@lru_cache(CACHED_LAYER_PAIRS)
def _within_layer(old: Layer, new: Layer) -> tuple[_PerLayer, ...]:
    """Return the expansions that turn the layer ``old`` into ``new``.

    They name no layers; :func:`between` adds the layers that share each of them. Heads are added
    last, because growing keys or values of all heads would also grow the added ones.
    """
    found: list[_PerLayer] = []
    if new.mlp > old.mlp:
        found.append(GrowMlp(new.mlp))
    for grow in (GrowKeys, GrowValues):
        grown: dict[int, list[int]] = {}
        for index, (before, after) in enumerate(zip(old.heads, new.heads, strict=False)):
            if after[grow.part] > before[grow.part]:
                grown.setdefault(after[grow.part], []).append(index)
        for to, heads in grown.items():
            found.append(grow(to, heads=None if len(heads) == len(old.heads) else tuple(heads)))
    count = len(old.heads)
    for (key, value), run in groupby(new.heads[count:]):
        count += len(list(run))
        found.append(AddHeads(count, key=key, value=value))
    return tuple(found)
