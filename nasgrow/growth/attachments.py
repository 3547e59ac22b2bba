"""Refuse to grow a model if that would lose hooks or attributes that users attached to it.

Layers keep their modules, and so keep hooks, subclasses and replaced methods. So do head groups
that continue an old one (:func:`nasgrow.model.groups_before`). Head groups that are merged or split
get new modules, and tensors that grow become new parameters: anything attached to these would be
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from torch import Tensor, nn

from nasgrow.errors import UserError
from nasgrow.model import Block, Heads, Transformer, groups_before
from nasgrow.shape import Shape


def check_modules(model: Transformer, new: Shape, lineage: Sequence[int | None]) -> None:
    """Raise ``UserError`` if growth would replace a module that has user attachments.

    It is also raised if a layer that grows is no :class:`~nasgrow.model.Block`.

    Args:
        model: The model before growth.
        new: The shape after growth.
        lineage: For each layer of ``new``, the index of the old layer that it continues, or None.
    """
    for layer, origin in zip_longest(new.layers, lineage):
        if origin is None or model.shape.layers[origin] == layer:
            continue
        place, block = f"layers.{origin}", model.layers[origin]
        if not isinstance(block, Block):
            raise UserError(f"cannot grow this model: {place} is a {type(block).__name__}, no Block")
        whole = groups_before(model.shape.layers[origin], layer)
        for number, heads in enumerate(block.heads):
            lost = [] if number in whole else _extras(heads)
            if lost:
                raise UserError(
                    f"cannot grow this model: {place}.heads.{number} is merged or split, and would lose its "
                    f"{', '.join(lost)}"
                )


def check_parameters(old: Mapping[str, nn.Parameter], kept: Container[int]) -> None:
    """Raise ``UserError`` if growth would replace a parameter that has hooks on its gradient.

    Args:
        old: The old parameters, by name.
        kept: The ids of the parameters that stay.
    """
    for name, parameter in old.items():
        for hook in _gradient_hooks(parameter) if id(parameter) not in kept else ():
            raise UserError(
                f"cannot grow this model: {name} has the gradient hook "
                f"{getattr(hook, '__qualname__', repr(hook))}, and growing would lose it; remove it, and "
                "register it with the grown tensor"
            )


def _extras(heads: nn.Module) -> list[str]:
    """Return the names of attributes, hooks or a subclass that a user gave to a ``Heads`` module.

    The list is empty if there are none.
    """
    assert isinstance(heads, Heads)
    usual = Heads(heads.group, heads.variant)
    for name, parameter in heads.named_parameters(recurse=False):
        usual.register_parameter(name, parameter)
    found = [] if type(heads) is Heads else [f"class {type(heads).__name__}"]
    for name, value in vars(heads).items():
        own = vars(usual).get(name)
        more = isinstance(value, Mapping) and isinstance(own, Mapping) and len(value) > len(own)
        if more or name not in vars(usual):
            found.append(name.strip("_").replace("_", " "))
    return found


def _gradient_hooks(parameter: nn.Parameter) -> list[object]:
    """Return the hooks on a parameter's gradient, before and after accumulation.

    torch has no public list of them. So register a hook of each kind for a moment: its handle
    refers to the dictionary that holds the others.
    """
    found: list[object] = []
    if parameter.requires_grad:
        ways: list[Callable[..., Any]]
        ways = [parameter.register_hook, parameter.register_post_accumulate_grad_hook]
        for register in ways:
            handle = register(_nothing)
            hooks = handle.hooks_dict_ref()
            found += [hook for number, hook in hooks.items() if number != handle.id]
            handle.remove()
    return found


def _nothing(tensor: Tensor) -> None:
    """A hook that does nothing."""
