"""The state of a run between two steps: all that the next step depends on."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from nasgrow.growth.masks import Mask
from nasgrow.model import Transformer
from nasgrow.training.optimizers import build_optimizers
from nasgrow.training.run import Run


@dataclass
class TrainState:
    """The state of training.

    Attributes:
        model: The model, of the shape of its stage.
        optimizers: Its optimizers.
        step: The number of steps done.
        stage: The index of the stage whose shape the model has.
        seconds: Wall time up to the last checkpoint, without the time between interruptions and
            resumptions.
        first_loss: The training loss of the first record, by which divergence is detected; None
            before that record.
        loss_sum: The sum of training losses since the last record.
        loss_count: The number of these losses.
        step_seconds: The wall time of those steps.
        step_flops: Their FLOPs.
        records: The length of the metrics file in bytes, so that resuming repeats no line.
        evaluated: The step before which the last evaluation was made, so that resuming repeats
            none; -1 before the first evaluation.
        lost: FLOPs of steps whose results were lost, because a process died after its last checkpoint.
        reused: FLOPs of steps that were skipped, because their result was in the prefix cache.
        masks: The masks of the model that are not fully open.
        warming: The new entries whose learning rate still warms up, if only new entries warm up.
    """

    model: Transformer
    optimizers: list[Optimizer]
    step: int = 0
    stage: int = 0
    seconds: float = 0.0
    first_loss: float | None = None
    loss_sum: Tensor = field(default_factory=lambda: torch.zeros(()))
    loss_count: int = 0
    step_seconds: float = 0.0
    step_flops: int = 0
    records: int = 0
    evaluated: int = -1
    lost: int = 0
    reused: int = 0
    masks: list[Mask] = field(default_factory=list)
    warming: list[Mask] = field(default_factory=list)

    def executed(self, charged: int) -> int:
        """Return the FLOPs really executed for the run when ``charged`` FLOPs are charged."""
        return charged + self.lost - self.reused

    @staticmethod
    def fresh(run: Run, stage: int = 0, device: torch.device | str = "cpu") -> TrainState:
        """Return a state with a newly initialised model of the shape of a stage, by default the first."""
        shape = run.stages[stage].shape
        model = Transformer(shape, run.variant, seed=run.config.seed, device=device)
        optimizers = build_optimizers(model, run.config.training)
        return TrainState(model, optimizers, stage=stage, loss_sum=torch.zeros((), device=device))
