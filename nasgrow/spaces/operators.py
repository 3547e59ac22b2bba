"""Check that the operators of a space can do all of its growth.

The check does not visit every point. It looks at the dimensions that may grow and at the sizes that they may
have. So it refuses an operator that cannot grow between two of these sizes, even if no point does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations, product
from math import inf

from nasgrow.config import TrainingConfig
from nasgrow.errors import UserError
from nasgrow.operators import ALL_BUT_LAYERS, AnyOperator, Operator
from nasgrow.shape import Shape, Variant
from nasgrow.spaces.common import Declarative
from nasgrow.spaces.levels import DIMS, Dim, size_at
from nasgrow.spaces.settings import Setting
from nasgrow.spaces.training import OPERATOR_FIELDS, with_training


def operators(config: TrainingConfig, settings: Mapping[str, Setting]) -> list[AnyOperator]:
    """Return the operators that a point's events may have: the study's, or those that the space searches.

    Operators that the events of a schedule name themselves are not included.

    Args:
        config: The study's training settings.
        settings: The training fields that the space searches, by dotted name.

    Raises:
        UserError: A searched operator is invalid.
    """
    searched = {name: setting.values for name, setting in settings.items() if name in OPERATOR_FIELDS}
    return [
        with_training(config, dict(zip(searched, values, strict=True))).operator
        for values in product(*searched.values())
    ]


def check_operators(
    found: Iterable[AnyOperator], model: Declarative, finals: Iterable[Shape], variant: Variant
) -> None:
    """Raise ``UserError`` if an operator cannot do some growth between sizes that a space may have.

    It does so even if no point of the space grows between these sizes.

    Args:
        found: The operators that points may have.
        model: The space.
        finals: The final shapes that its schedules may end at.
        variant: The study's variant.
    """
    grown = frozenset(dim for dim, start in model.starts.items() if min(start.values) < 1)
    for operator in found:
        operator.check_kinds(grown, variant)
        for single, kinds in operator.split(grown):
            for final in finals:
                _check_copies(single, kinds, model, final)
                _check_multiples(single, kinds, model, final, variant)


def _check_copies(operator: Operator, kinds: frozenset[str], model: Declarative, final: Shape) -> None:
    if operator.copies_heads and "heads" in kinds:
        for index, layer in enumerate(final.layers):
            if len(layer.groups) > 1:
                raise UserError(
                    f"operator {operator.kind} copies heads, so where heads grow those of a layer must be "
                    f"equal, and layer {index} of the final shape has {layer}"
                )
    if operator.whole_width and ALL_BUT_LAYERS & kinds:
        raise UserError(
            f"operator {operator.kind} grows the whole width at once, which the points of a space need not do"
        )
    unequal = len(set(final.layers)) > 1 or not model.grows_alike
    if operator.equal_layers and ALL_BUT_LAYERS & kinds and unequal:
        raise UserError(
            f"operator {operator.kind} takes units from the next layer, so where width grows all layers must "
            f"be equal at any time"
        )
    copies = operator.copied_layers(1, 2) is not None
    if (copies or operator.mixes_layers) and "layers" in kinds and unequal:
        raise UserError(
            f"operator {operator.kind} {'copies' if copies else 'mixes'} layers, so where layers grow all "
            "must be equal at any time"
        )


def _check_multiples(
    operator: Operator, kinds: frozenset[str], model: Declarative, final: Shape, variant: Variant
) -> None:
    for dim in (dim for dim in DIMS if dim in kinds & operator.multiples):
        if model.starts[dim].count == inf:
            raise UserError(
                f"operator {operator.kind} grows {dim} by integer factors, so its start must have a step"
            )
        for whole in sizes_of(final)[dim]:
            sizes = sorted(
                {size_at(dim, share, whole, variant, model.rounding) for share in model.shares(dim)}
            )
            for small, large in combinations(sizes, 2):
                if large % small:
                    raise UserError(
                        f"operator {operator.kind} grows {dim} by integer factors, and this space may grow "
                        f"it from {small} to {large}"
                    )


def sizes_of(shape: Shape) -> Mapping[Dim, set[int]]:
    """Return the set of sizes of each dimension of a shape."""
    heads = [head for layer in shape.layers for head in layer.heads]
    return {
        "hidden": {shape.hidden},
        "layers": {len(shape.layers)},
        "mlp": {layer.mlp for layer in shape.layers},
        "heads": {layer.head_count for layer in shape.layers},
        "key": {key for key, _ in heads},
        "value": {value for _, value in heads},
    }
