"""RMSNorm, MLP and cross-entropy with hand-written gradients, for speed on the CPU.

Eager autograd allocates a tensor for each intermediate gradient, and on a CPU the first touch of that memory
costs as much as the arithmetic. This module computes the large ones in place. The model uses the plain
formulas on CUDA, where the compiler fuses as well, and under autocast, where tensors have several precisions.

Shape legend: t tokens, h hidden, p MLP width, v vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def applies(x: Tensor) -> bool:
    """Return whether to use these functions for ``x`` instead of the plain formulas."""
    return x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


class _RmsNorm(Function):
    """RMSNorm (equation 5) with ``epsilon`` added to the sum of squares."""

    @staticmethod
    def forward(ctx: Any, x_th: Tensor, gain_h: Tensor, epsilon: float) -> Tensor:
        """``x / rms(x) * gain``."""
        norm_t1 = torch.linalg.vector_norm(x_th, dim=-1, keepdim=True)
        scale_t1 = torch.rsqrt_(norm_t1.square_().add_(epsilon)).mul_(math.sqrt(x_th.shape[-1]))
        unit_th = x_th * scale_t1
        ctx.save_for_backward(unit_th, scale_t1, gain_h)
        return unit_th * gain_h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_th: Tensor) -> tuple[Tensor, Tensor, None]:
        """``dx = scale * (dy * gain - unit * mean(dy * gain * unit))``."""
        unit_th, scale_t1, gain_h = ctx.saved_tensors
        along_th = dy_th * unit_th
        dgain_h = along_th.sum(0)
        mean_t1 = torch.mv(along_th, gain_h).div_(gain_h.shape[0]).unsqueeze(1)
        dx_th = torch.mul(dy_th, gain_h, out=along_th)
        return dx_th.addcmul_(unit_th, mean_t1, value=-1).mul_(scale_t1), dgain_h, None


class _ReluMlp(Function):
    """``onto + relu(x up + up_bias) down + down_bias`` (equation 3, added onto the residual stream)."""

    @staticmethod
    def forward(
        ctx: Any, onto_th: Tensor, x_th: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor
    ) -> Tensor:
        """Return the sum, in one new tensor."""
        active_tp = torch.addmm(up_bias, x_th, up).relu_()
        ctx.save_for_backward(x_th, up, active_tp, down)
        return torch.addmm(onto_th, active_tp, down).add_(down_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_th: Tensor) -> tuple[Tensor | None, ...]:
        """Apply ReLU's mask in place, and skip products for inputs that need no gradient."""
        x_th, up, active_tp, down = ctx.saved_tensors
        _, for_x, for_up, for_up_bias, for_down, _ = ctx.needs_input_grad
        dx_th = dup_hp = dup_bias_p = None
        if for_x or for_up or for_up_bias:
            d_tp = dy_th @ down.T
            torch.ops.aten.threshold_backward.grad_input(d_tp, active_tp, 0, grad_input=d_tp)
            dx_th = d_tp @ up.T if for_x else None
            dup_hp = x_th.T @ d_tp if for_up else None
            dup_bias_p = d_tp.sum(0)
        ddown_ph = active_tp.T @ dy_th if for_down else None
        return dy_th, dx_th, dup_hp, dup_bias_p, ddown_ph, dy_th.sum(0)


class _CrossEntropy(Function):
    """The mean of ``-log softmax(logits)[target]``; overwrites the logits, so no other code may use them."""

    @staticmethod
    def forward(ctx: Any, logits_tv: Tensor, targets_t: Tensor) -> Tensor:
        """Return the mean loss over tokens.

        Only the largest probability, which cannot be 0, goes through the logarithm. torch's softmax takes
        a third of the time of log-softmax followed by an exponential.
        """
        top_t1 = logits_tv.amax(1, keepdim=True)
        below_t1 = logits_tv.gather(1, targets_t.unsqueeze(1)).sub_(top_t1)
        share_tv = torch.softmax(logits_tv, -1, out=logits_tv)
        ctx.save_for_backward(share_tv, targets_t)
        return below_t1.add_(share_tv.amax(1, keepdim=True).log_()).mean().neg_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        """``dlogits = dy * (softmax - one hot) / t``."""
        share_tv, targets_t = ctx.saved_tensors
        each = dy / len(targets_t)
        d_tv = share_tv.mul_(each)
        return d_tv.scatter_add_(1, targets_t.unsqueeze(1), (-each).expand(len(targets_t), 1)), None


rms_norm: Callable[[Tensor, Tensor, float], Tensor] = _RmsNorm.apply
"""``rms_norm(x, gain, epsilon)``; ``epsilon`` is added to the sum of squares."""
relu_mlp: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] = _ReluMlp.apply
"""``relu_mlp(onto, x, up, up_bias, down, down_bias)``: the MLP of ``x``, added to ``onto``."""
cross_entropy: Callable[[Tensor, Tensor], Tensor] = _CrossEntropy.apply
"""``cross_entropy(logits, targets)``: the mean loss over tokens. It overwrites ``logits``."""
