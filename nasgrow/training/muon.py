"""Muon for GPUs: matrices of equal sizes are updated together.

Torch's Muon launches about 25 small kernels for each matrix, and a GPU waits for the launches. Here there are
as many launches for all matrices of one size together. The formulas and the state are torch's.

Shape legend: n matrices, r rows, c columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Muon


class BatchedMuon(Muon):
    """Muon with Nesterov momentum, whose updates have the size of AdamW's."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient; ``closure`` must be None."""
        assert closure is None
        for group in self.param_groups:
            assert group["nesterov"]
            assert group["adjust_lr_fn"] == "match_rms_adamw"
            by_size: dict[tuple[int, ...], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_size.setdefault(tuple(parameter.shape), []).append(parameter)
            for matrices in by_size.values():
                self._update(matrices, group)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        gradients, buffers = [], []
        for matrix in matrices:
            assert matrix.grad is not None
            state = self.state[matrix]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(matrix.grad)
            gradients.append(matrix.grad)
            buffers.append(state["momentum_buffer"])
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        update_nrc = torch.stack(torch._foreach_lerp(gradients, buffers, group["momentum"]))
        update_nrc = orthogonalised(update_nrc, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rate = group["lr"] * 0.2 * math.sqrt(max(matrices[0].shape))
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, update_nrc.to(matrices[0]).contiguous().unbind(), alpha=-rate)


def orthogonalised(
    x_nrc: Tensor, coefficients: tuple[float, float, float], steps: int, epsilon: float
) -> Tensor:
    """Return each matrix with its singular values moved near 1, in bfloat16.

    Newton-Schulz iterations move them.
    """
    a, b, c = coefficients
    tall = x_nrc.shape[1] > x_nrc.shape[2]
    x_nrc = x_nrc.bfloat16()
    x_nrc = x_nrc.mT if tall else x_nrc
    x_nrc = x_nrc / torch.linalg.vector_norm(x_nrc, dim=(1, 2), keepdim=True).clamp(min=epsilon)
    for _ in range(steps):
        gram_nrr = x_nrc @ x_nrc.mT
        gram_nrr = torch.baddbmm(gram_nrr, gram_nrr, gram_nrr, beta=b, alpha=c)
        x_nrc = torch.baddbmm(x_nrc, gram_nrr, x_nrc, beta=a)
    return x_nrc.mT if tall else x_nrc
