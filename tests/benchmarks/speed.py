"""Tokens per second of a training step, against a plain PyTorch GPT of the same shape.

The plain GPT is what one would write: fused QKV, scaled dot-product attention, RMSNorm, fused AdamW, the
same batch, gradients clipped. Ours is the training loop's own step. Steps of both alternate in one run, and
medians are compared. Beside the ratio (aim: at least 1.0, better 1.15): the share of this machine's float32
matmul peak that each reaches.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line does, for both

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from nasgrow.config import TrainingConfig
from nasgrow.flops import step_flops
from nasgrow.model import Transformer
from nasgrow.shape import Shape
from nasgrow.training.machine import matmul_peak
from nasgrow.training.optimizers import build_optimizers
from nasgrow.training.step import backward, update
from nasgrow.verify import PAPER

CONTEXT, VOCAB, SEQUENCES = 128, 256, 32


class PlainLayer(nn.Module):
    """A transformer layer as anyone would write it."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, hidden))
        mlp: Tensor = self.down(F.relu(self.up(self.norm2(x))))
        return x + mlp


class PlainGpt(nn.Module):
    """A GPT of equal layers."""

    def __init__(self, hidden: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCAB, hidden), nn.Embedding(CONTEXT, hidden)
        self.layers = nn.Sequential(*(PlainLayer(hidden, heads) for _ in range(layers)))
        self.output = nn.Linear(hidden, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(positions)
        logits: Tensor = self.output(self.layers(x))
        return logits


def plain_step(model: PlainGpt, optimizer: Optimizer, tokens: NDArray[np.int64]) -> float:
    """A step as anyone would write it; returns its seconds."""
    start = time.perf_counter()
    batch = torch.from_numpy(tokens)
    optimizer.zero_grad()
    F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return time.perf_counter() - start


def our_step(model: Transformer, optimizers: Sequence[Optimizer], tokens: NDArray[np.int64]) -> float:
    """The training loop's own step; returns its seconds."""
    start = time.perf_counter()
    backward(model, tokens, tokens[:, 1:].size)
    update(optimizers, model, 1e-3, 1.0)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    tokens = np.random.default_rng(0).integers(VOCAB, size=(SEQUENCES, CONTEXT + 1))
    peak = matmul_peak(torch.device("cpu"))
    print(f"matmul peak {peak / 1e9:.0f} GFLOP/s on {torch.get_num_threads()} threads")
    for hidden, layers, heads, rounds in ((64, 2, 4, 40), (128, 4, 4, 25), (256, 4, 8, 15), (384, 6, 6, 9)):
        size = hidden // heads
        shape = Shape.uniform(
            hidden=hidden,
            layers=layers,
            mlp=4 * hidden,
            heads=heads,
            key=size,
            value=size,
        )
        plain, ours = PlainGpt(hidden, layers, heads), Transformer(shape, PAPER)
        plain_optimizer = AdamW(plain.parameters(), lr=1e-3, fused=True)
        our_optimizers = build_optimizers(ours, TrainingConfig())
        seconds = [
            (plain_step(plain, plain_optimizer, tokens), our_step(ours, our_optimizers, tokens))
            for _ in range(2 + rounds)
        ][2:]
        a, b = (statistics.median(times) for times in zip(*seconds, strict=True))
        flops = step_flops(shape, PAPER, SEQUENCES)
        print(
            f"h={hidden:3} N={layers}: plain {SEQUENCES * CONTEXT / a:7.0f}, "
            f"ours {SEQUENCES * CONTEXT / b:7.0f} tokens/s: {a / b:.2f}x; "
            f"of the peak: plain {flops / a / peak:.0%}, ours {flops / b / peak:.0%}"
        )
    print_padding()


def print_padding() -> None:
    """Unequal key and value sizes: padded to the larger, as the model does, against as they are."""
    q, k = (torch.randn(32, 8, CONTEXT, 32, requires_grad=True) for _ in range(2))
    v = torch.randn(32, 8, CONTEXT, 16, requires_grad=True)

    def attend(padded: bool) -> float:
        start = time.perf_counter()
        value = F.pad(v, (0, 16)) if padded else v
        y = F.scaled_dot_product_attention(q, k, value, is_causal=True)[..., :16]
        y.sum().backward()
        return time.perf_counter() - start

    pairs = [(attend(False), attend(True)) for _ in range(12)][2:]
    plain, padded = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"attention with keys of 32 and values of 16: padding is {plain / padded:.2f}x as fast")


if __name__ == "__main__":
    main()
