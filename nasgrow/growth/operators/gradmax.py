"""The operator ``gradmax`` (Evci et al., 2022) for MLP units.

A new unit with incoming weights u = 0 and outgoing weights d adds nothing. The gradient of u is

    dL/du = f'(0) M d,   M = sum over tokens of x (dL/dz)^T,

where x is the input of the MLP and z its output. Among orthogonal outgoing weights of norm c for k units,
c times the top k right singular vectors of M have the largest gradient:

    sum of |dL/du_i|² = (c f'(0))² (s_1² + ... + s_k²).

M is measured on one batch, in the grown model that ``preserve`` would make, and decomposed in float64. c is
the mean norm of the old units' outgoing weights (or of a fresh model's, if these are zero). M has as many
singular vectors as there are hidden units. Further new units take the negatives of these vectors, whose
gradients are opposite. New units beyond twice the hidden size are as in ``preserve``, and so are all new
units of an MLP whose M is not finite.

ReLU has no slope at zero. There new units get a bias of 1, where the slope is 1, and the constant that they
add is subtracted from the bias of the down projection, which preserves the function.

A gated unit is linear in u for a given gate: new units start with one fresh gate g, and f(x g) x replaces x.
A negative with the same gate would stay a unit's mirror image, because both its incoming and its outgoing
weights change their signs: -u and -d. So every h new units have a separate gate, and with it a separate M
and separate singular vectors.

Heads, values, keys, the hidden size and layers grow as in ``preserve``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import sqrt

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from nasgrow.growth.operators import preserve
from nasgrow.growth.operators.contract import Parts, Recipe, Situation
from nasgrow.growth.operators.grown_weights import batches_for, draft, learn_from
from nasgrow.growth.plan import TensorPlan
from nasgrow.model import Block, Transformer
from nasgrow.operators import PRESERVE, GradMax, widened_mlps

RELU_BIAS = 1.0
"""The bias of new units under ReLU."""


def recipe(operator: GradMax, situation: Situation) -> Recipe:
    """Return the recipe of ``preserve``, but set the weights of new MLP units as described above.

    Raises:
        UserError: MLPs of old layers are widened, and there are no batches.
    """
    s = situation
    plain = preserve.recipe(PRESERVE, s)
    widened = widened_mlps(s.old, s.new, s.lineage)
    if not widened:
        return plain
    with torch.enable_grad():
        model = draft(plain, s)
        moments = _moments(model, widened, next(batches_for(operator.kind, s)))
    outgoing = {}
    for layer, moment_bhh in moments.items():
        if not moment_bhh.isfinite().all():
            continue
        old = widened[layer]
        down_ph = model.get_parameter(f"layers.{layer}.down").detach()
        norm = float(down_ph[:old].norm(dim=1).mean()) or sqrt(s.new.hidden / len(down_ph))
        vectors_nh = torch.linalg.svd(moment_bhh).Vh.flatten(0, 1)
        if not s.variant.gated:
            vectors_nh = torch.cat((vectors_nh, -vectors_nh))
        outgoing[layer] = (norm * vectors_nh[: len(down_ph) - old]).to(down_ph)
    lifted = s.variant.activation == "relu" and not s.variant.gated

    def finish(plan: TensorPlan, weights: Tensor, generator: torch.Generator) -> None:
        entry = plan.entry
        if entry.layer not in outgoing:
            return
        chosen_nh = outgoing[entry.layer]
        new = slice(widened[entry.layer], widened[entry.layer] + len(chosen_nh))
        if entry.role == "down":
            weights[new] = chosen_nh
        elif entry.role == "up":
            weights[:, new] = 0
        elif entry.role == "gate":
            for first in range(new.start, new.stop, s.new.hidden):
                weights[:, first : first + s.new.hidden] = weights[:, first : first + 1].clone()
        elif entry.role == "up_bias" and lifted:
            weights[new] = RELU_BIAS
        elif entry.role == "down_bias" and lifted:
            weights -= RELU_BIAS * chosen_nh.sum(0)

    biases = frozenset(f"layers.{layer}.down_bias" for layer in outgoing) if lifted else frozenset()
    return replace(plain, finish=finish, changed=biases)


def _moments(model: Transformer, widened: dict[int, int], parts: Parts) -> dict[int, Tensor]:
    """Return M of each widened MLP, by layer: (gates, h, h), with one gate if MLPs are not gated.

    It takes a forward and a backward pass over one batch, and one product for each M.

    Args:
        model: The grown model.
        widened: The old MLP width of each widened layer.
        parts: The batch.
    """
    hidden = model.shape.hidden
    found: dict[int, Tensor] = {}

    def spy(layer: int, x_th: Tensor, onto_th: Tensor | None) -> Tensor:
        block = model.layers[layer]
        assert isinstance(block, Block)
        z_th = Block.mlp(block, x_th, onto_th)
        x_th = x_th.detach()
        seen_bth = x_th[None]
        if model.variant.gated:
            gates_hb = model.get_parameter(f"layers.{layer}.gate").detach()[:, widened[layer] :: hidden]
            open_tb = getattr(F, model.variant.activation)(x_th @ gates_hb)
            seen_bth = open_tb.T[:, :, None] * x_th

        def measure(gradient_th: Tensor) -> None:
            moment_bhh = torch.stack([(seen_th.T @ gradient_th).double() for seen_th in seen_bth])
            found[layer] = found[layer] + moment_bhh if layer in found else moment_bhh

        z_th.register_hook(measure)
        return z_th

    for layer in widened:
        vars(model.layers[layer])["mlp"] = partial(spy, layer)
    learn_from(parts, model, model.embedding.device)
    return found
