"""GradMax (Evci et al., 2022) for the units of MLPs.

A new unit with incoming weights u = 0 and outgoing weights d adds nothing, and the gradient that reaches u is

    dL/du = f'(0) M d,   M = sum over tokens of x (dL/dz)^T,

x being what the MLP takes in and z what it gives out. Among orthogonal outgoing weights of norm c those of k
units that have the largest gradient are c times the top k right singular vectors of M:

    sum of |dL/du_i|² = (c f'(0))² (s_1² + ... + s_k²).

M is measured on one batch, in the grown model as ``preserve`` would make it. c is the mean norm of the old
units' outgoing weights (of a fresh model's, if these are zero). M has as many singular vectors as there are
hidden units. Further new units take their negatives, whose gradients are opposite, and what is more than
twice the hidden size is as in ``preserve``.

ReLU has no slope at zero. New units there get a bias of 1, where the slope is 1, and the constant that they
add is taken off the bias behind them, so that the function is kept. A gated unit is linear in u where the
gate is given: all new units of a layer start with the same fresh gate g, and x is replaced by f(x g) x.

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
from nasgrow.growth.operators.contract import Recipe, Situation
from nasgrow.growth.operators.draft import batches_for, draft
from nasgrow.growth.plan import TensorPlan
from nasgrow.model import Block, Transformer
from nasgrow.operators import PRESERVE, GradMax, widened_mlps

RELU_BIAS = 1.0


def recipe(operator: GradMax, situation: Situation) -> Recipe:
    """What ``preserve`` does, with outgoing weights of new MLP units from singular vectors."""
    s = situation
    plain = preserve.recipe(PRESERVE, s)
    widened = widened_mlps(s.old, s.new, s.lineage)
    if not widened:
        return plain
    with torch.enable_grad():
        model = draft(plain, s)
        moments = _moments(model, widened, batches_for(operator.kind, s)(0))
    outgoing = {}
    for layer, moment_hh in moments.items():
        old = widened[layer]
        down_ph = model.get_parameter(f"layers.{layer}.down").detach()
        norm = float(down_ph[:old].norm(dim=1).mean()) or sqrt(s.new.hidden / len(down_ph))
        vectors_h = torch.linalg.svd(moment_hh).Vh
        outgoing[layer] = norm * torch.cat((vectors_h, -vectors_h))[: len(down_ph) - old]
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
            weights[:, new] = weights[:, new.start : new.start + 1].clone()
        elif entry.role == "up_bias" and lifted:
            weights[new] = RELU_BIAS
        elif entry.role == "down_bias" and lifted:
            weights -= RELU_BIAS * chosen_nh.sum(0)

    biases = frozenset(f"layers.{layer}.down_bias" for layer in widened) if lifted else frozenset()
    return replace(plain, finish=finish, changed=biases)


def _moments(model: Transformer, widened: dict[int, int], tokens_bs: Tensor) -> dict[int, Tensor]:
    """M of each widened MLP: one forward and one backward pass, and a product for each."""
    found: dict[int, Tensor] = {}

    def spy(layer: int, x_th: Tensor, onto_th: Tensor | None) -> Tensor:
        block = model.layers[layer]
        assert isinstance(block, Block)
        z_th = Block.mlp(block, x_th, onto_th)
        seen_th = x_th.detach()
        if model.variant.gated:
            gate_h1 = model.get_parameter(f"layers.{layer}.gate").detach()[:, widened[layer], None]
            seen_th = seen_th * getattr(F, model.variant.activation)(seen_th @ gate_h1)

        def measure(gradient_th: Tensor) -> None:
            found[layer] = seen_th.T @ gradient_th

        z_th.register_hook(measure)
        return z_th

    for layer in widened:
        vars(model.layers[layer])["mlp"] = partial(spy, layer)
    tokens_bs = tokens_bs.to(model.embedding.device)
    logits_tv = model(tokens_bs[:, :-1]).flatten(0, 1)
    F.cross_entropy(logits_tv, tokens_bs[:, 1:].flatten()).backward()
    return found
