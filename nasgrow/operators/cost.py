"""What operators that learn compute at an event: the sizes of their products, and their FLOPs."""

from __future__ import annotations

from math import prod

from nasgrow.expansions import Lineage
from nasgrow.params import table
from nasgrow.shape import Shape, Variant

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


def map_flops(old: Shape, new: Shape, variant: Variant) -> tuple[int, int]:
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
