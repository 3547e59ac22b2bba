"""The optimizers of a run, grouped by the parameter table."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from nasgrow.config import TrainingConfig
from nasgrow.model import Transformer
from nasgrow.params import TensorSpec, table
from nasgrow.training.muon import BatchedMuon


def build_optimizers(model: Transformer, config: TrainingConfig) -> list[Optimizer]:
    """Build the optimizers of a run: AdamW for all parameters, or AdamW first and Muon second.

    Muon trains the matrices that multiply activations, with updates of AdamW's size; AdamW trains the rest.
    Learning rates are 0 until :func:`nasgrow.training.step.update` sets them.
    """
    named = dict(model.named_parameters())
    entries = table(model.shape, model.variant)
    muon = config.optimizer == "muon"
    by_muon = [e for e in entries.values() if muon and e.row.multiplies]
    by_adamw = [e for e in entries.values() if not (muon and e.row.multiplies)]

    def parameters(chosen: Sequence[TensorSpec], decays: bool) -> list[nn.Parameter]:
        return [named[entry.name] for entry in chosen if entry.row.decays == decays]

    groups = [
        {"params": parameters(by_adamw, True), "weight_decay": config.weight_decay},
        {"params": parameters(by_adamw, False), "weight_decay": 0.0},
    ]
    optimizers: list[Optimizer] = [AdamW(groups, lr=0.0, betas=(config.beta1, config.beta2), fused=True)]
    if by_muon:
        matrices = parameters(by_muon, True)
        decay = config.weight_decay
        muon_class = BatchedMuon if model.embedding.device.type == "cuda" else Muon
        optimizers.append(muon_class(matrices, lr=0.0, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    return optimizers
