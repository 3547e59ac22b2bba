"""The operator ``bert2bert`` (Chen et al., 2022): copies of units or units of the next layer, and stacking.

Width, ``fpi``: Net2Net's duplicates, which the paper carries over to transformers.

Width, ``aki``: let W^l be the tensor of layer l with its inputs widened as with ``fpi``. The first outputs
are those of W^l, and a new output j is the output g(j) of W^(l+1). So a new MLP unit is a unit of the next
layer, and a new head is a head of the next layer. Layer l gets knowledge of layer l + 1, and its new units
differ from its old ones. Embeddings and the last layer have no next layer, and duplicate units as
with ``fpi``.

Copies of one unit (all with ``fpi``; with ``aki`` those of the last layer, and those beyond the second) would
have equal gradients forever. The paper's models have dropout, which makes them diverge; here noise that
cancels over copies does. With ``fpi`` the noise preserves the function.

Depth: the widened model is stacked on itself as often as it fits. The remaining layers on top are copies of
its top layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nasgrow.growth.operators import stack
from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.operators.net2net import duplicates
from nasgrow.growth.operators.noise import cancelling
from nasgrow.growth.plan import Copy, TensorPlan, plan_growth
from nasgrow.operators import Bert2Bert
from nasgrow.params import TensorSpec, table


def recipe(operator: Bert2Bert, situation: Situation) -> Recipe:
    """Return the recipe of one of the two growths of an event: width or depth."""
    s = situation
    if len(s.new.layers) > len(s.old.layers):
        return stack.recipe(operator, s)
    plans = plan_growth(s.old, s.new, s.lineage, s.variant, units=duplicates(s))
    if operator.init == "aki":
        entries = {_place(entry): entry for entry in table(s.old, s.variant).values()}
        plans = {name: _advanced(plan, entries) for name, plan in plans.items()}
    return Recipe(plans, s.fill, s.lineage, cancelling(operator.noise, plans, s))


def _place(entry: TensorSpec) -> tuple[int | None, str, range | None]:
    """Return a key that identifies a tensor of a model: its layer, its role and its heads."""
    return entry.layer, entry.role, entry.heads


def _advanced(plan: TensorPlan, old: Mapping[tuple[int | None, str, range | None], TensorSpec]) -> TensorPlan:
    """Return the plan with new outputs copied from the next layer, if there is one.

    All layers have equal sizes, so the copied boxes are the same.

    Args:
        plan: The plan of a tensor, whose new outputs are copied from the same layer.
        old: The tensors of the old model, by the key of :func:`_place`.
    """

    def source(copy: Copy) -> TensorSpec:
        layer, role, heads = _place(copy.source)
        if layer is None or not _new_outputs(copy, plan.entry):
            return copy.source
        return old.get((layer + 1, role, heads), copy.source)

    return replace(plan, copies=tuple(replace(copy, source=source(copy)) for copy in plan.copies))


def _new_outputs(copy: Copy, entry: TensorSpec) -> bool:
    """Return whether a copy fills new outputs of the tensor, and not old outputs in their old place."""
    outputs = entry.row.dims[-1]
    for name, take, put in zip(entry.axes, copy.take, copy.put, strict=True):
        taken, placed = take[0], put[0]
        if name == "E" and copy.source.heads is not None and entry.heads is not None:
            taken, placed = taken + copy.source.heads.start, placed + entry.heads.start
        if name in outputs and taken != placed:
            return True
    return False
