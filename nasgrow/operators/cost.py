"""The FLOPs that operators execute at an event when they learn from batches."""

from __future__ import annotations

from math import prod

from nasgrow.expansions import Lineage
from nasgrow.params import table
from nasgrow.shape import Shape, Variant

_JOINT = {
    "query": ("h", "q", "Q"),
    "key": ("h", "K"),
    "value": ("h", "V"),
    "query_bias": ("q", "Q"),
    "key_bias": ("K",),
    "value_bias": ("V",),
    "out": ("q", "V", "h"),
}


def joint_axes(shape: Shape, variant: Variant, layer: int | None) -> dict[str, dict[str, int]]:
    """Return the axes and sizes of each tensor of a layer, by role, with all head groups joined.

    ``Q``, ``K`` and ``V`` run over the units of all heads, one head after the other. The queries
    per head are an axis of their own, ``q``. ``layer`` None stands for the tensors outside of
    layers.
    """
    sizes = {"vocab": variant.vocab, "context": variant.context, "h": shape.hidden, "q": variant.queries}
    if layer is not None:
        heads = shape.layers[layer].heads
        keys, values = (sum(head[which] for head in heads) for which in (0, 1))
        sizes |= {"p": shape.layers[layer].mlp, "Q": keys, "K": keys, "V": values, "k": heads[0][0]}
    one = shape.with_layers([shape.layers[layer or 0]])
    rows = {
        entry.role: entry.axes
        for entry in table(one, variant).values()
        if (entry.layer is None) == (layer is None)
    }
    return {role: {axis: sizes[axis] for axis in _JOINT.get(role, axes)} for role, axes in rows.items()}


def _mapped(old: Shape, new: Shape, variant: Variant) -> set[tuple[str, int | None]]:
    """Return role and layer of each tensor of the grown model that the operator ``ligo`` maps.

    The other tensors do not change, and need no gradient while the map is trained.
    """
    deeper = len(new.layers) > len(old.layers)
    found: set[tuple[str, int | None]] = set()
    for layer in (None, *range(len(new.layers))):
        mixed = deeper and layer is not None
        before = {} if mixed else joint_axes(old, variant, layer)
        after = joint_axes(new, variant, layer)
        found |= {(role, layer) for role, axes in after.items() if axes != before.get(role)}
    return found


def mapped_step_flops(old: Shape, new: Shape, variant: Variant, sequences: int) -> int:
    """Return the FLOPs of one training step of the grown model while the operator ``ligo`` trains its map.

    Only mapped tensors, and activations computed from them, need gradients. The backward pass of a
    product costs as much as the product for each factor that needs a gradient. The backward pass of
    attention counts in full if queries, keys or values need gradients, because kernels compute all of it.
    """
    tokens, before = sequences * variant.context, variant.norm == "before"
    entries, mapped = table(new, variant), _mapped(old, new, variant)
    total = 0

    def learned(*roles: str, layer: int | None = None) -> bool:
        return any((role, layer) in mapped for role in roles)

    def multiply(name: str, x: bool) -> None:
        nonlocal total
        entry = entries[name]
        total += 2 * tokens * entry.count * (1 + learned(entry.role, layer=entry.layer) + x)

    # The variables below say whether each activation needs a gradient.
    stream = learned("embedding")  # and with it the positions
    for index, layer in enumerate(new.layers):
        at = f"layers.{index}."
        gain = learned("attention_norm", layer=index)
        x = stream or (before and gain)
        attended = x or learned("query", "key", "value", layer=index)
        for number, group in enumerate(layer.groups):
            for role in ("query", "key", "value"):
                multiply(f"{at}heads.{number}.{role}", x)
            size = 2 * group.count * variant.queries * max(group.key, group.value)
            total += 2 * tokens * variant.context * size * (3 if attended else 1)
            multiply(f"{at}heads.{number}.out", attended)
        stream = stream or attended or gain or learned("out", layer=index)
        gain = learned("mlp_norm", layer=index)
        x = stream or (before and gain)
        inward = ("gate", "up") if variant.gated else ("up",)
        active = x or learned(*inward, layer=index)
        for role in inward:
            multiply(at + role, x)
        multiply(at + "down", active)
        stream = stream or active or gain or learned("down", layer=index)
    x = stream or (variant.final_norm and learned("final_norm"))
    multiply("embedding" if variant.tied else "output", x)
    return total


def map_flops(old: Shape, new: Shape, variant: Variant) -> tuple[int, int]:
    """Return the FLOPs of the map of ``ligo``: applied once, and applied with its backward pass.

    The backward pass of a product costs as much as the product for each factor that needs a gradient.
    Old values need none.
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
    """Return the old MLP width of each layer of the grown model whose MLP is widened."""
    return {
        layer: old.layers[origin].mlp
        for layer, origin in enumerate(lineage)
        if origin is not None and old.layers[origin].mlp < new.layers[layer].mlp
    }
