"""New entries that stay zero because their tensor is frozen, and with them what was added."""

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
    """Warn of frozen tensors through which new units, heads or layers were to come in.

    Nothing comes in through zeros that do not train. Hidden units are an exception, as many tensors write
    them: one that trains is enough. Of a model that does not train at all nothing is said.

    Args:
        entries: The table of the grown model.
        parameters: Its tensors.
        added: Their parts that the event added.
        stacklevel: Whose fault it is, as in :func:`warnings.warn`.
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
            "these tensors are frozen and their new entries zero, so what was added there stays dead until "
            f"they train: {', '.join(dead)}",
            stacklevel=stacklevel + 1,
        )


def _all_hidden(box: Box, entry: TensorSpec) -> Box:
    """The box in all hidden units: if none of it is old, the box is new along another axis."""
    by_axis = zip(entry.axes, entry.sizes, box, strict=True)
    return tuple((0, size) if axis == "h" else side for axis, size, side in by_axis)
