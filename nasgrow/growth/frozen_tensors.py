"""Warn of new units that cannot train because the tensor that connects them is zero and frozen."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from torch import nn

from nasgrow.growth.plan import without
from nasgrow.params import Box, TensorSpec, index


def warn_of_dead(
    entries: Mapping[str, TensorSpec],
    parameters: Mapping[str, nn.Parameter],
    added: Mapping[str, Sequence[Box]],
    stacklevel: int,
) -> None:
    """Warn of frozen tensors whose new entries are zero.

    A new unit, head or layer has no effect while the entries that connect it are zero, and frozen
    zeros never change. Hidden units are an exception: many tensors write them, and one that trains is
    enough. There is no warning if the whole model is frozen.

    Args:
        entries: The parameter table of the grown model.
        parameters: The grown parameters, by name.
        added: The boxes of each parameter that the event added.
        stacklevel: The stack frame that the warning names, as in :func:`warnings.warn`.
    """
    frozen = {name for name, parameter in parameters.items() if not parameter.requires_grad}
    hidden = frozen.issuperset(name for name, entry in entries.items() if "h" in entry.row.zero)
    dead = [
        name
        for name, entry in entries.items()
        if name in frozen
        and entry.row.start != 0
        and any(
            not parameters[name].detach().view(entry.sizes)[index(box)].any()
            and (hidden or not without(_all_hidden(box, entry), added[name]))
            for box in added[name]
        )
    ]
    if dead and len(frozen) < len(parameters):
        warnings.warn(
            "these tensors are frozen and their new entries are zero, so the units added there have no "
            f"effect until they train: {', '.join(dead)}",
            stacklevel=stacklevel + 1,
        )


def _all_hidden(box: Box, entry: TensorSpec) -> Box:
    """Return the box extended to all hidden units.

    If the extended box holds no old values, the box is new along another axis than ``h``.
    """
    by_axis = zip(entry.axes, entry.sizes, box, strict=True)
    return tuple((0, size) if axis == "h" else side for axis, size, side in by_axis)
