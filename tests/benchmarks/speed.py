"""Tokens per second of a training step, against a plain PyTorch GPT of the same shape.

The plain GPT is what one would write: fused QKV, scaled dot-product attention, RMSNorm, fused AdamW, the same
batch. Steps of both alternate in one run; medians are compared. Beside the ratio (aim: at least 1.0, better
1.15): the share of this machine's float32 matmul peak that each reaches.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from nasgrow.flops import step_flops
from nasgrow.model import Transformer
from nasgrow.shape import Shape, Variant
from nasgrow.training.machine import matmul_peak

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


def step(model: nn.Module, optimizer: Optimizer, tokens: Tensor) -> float:
    """Train one step; return its seconds."""
    start = time.perf_counter()
    optimizer.zero_grad()
    F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    torch.manual_seed(0)
    tokens = torch.randint(VOCAB, (SEQUENCES, CONTEXT + 1))
    peak = matmul_peak(torch.device("cpu"))
    print(f"matmul peak {peak / 1e9:.0f} GFLOP/s on {torch.get_num_threads()} threads")
    for hidden, layers, heads, rounds in ((64, 2, 4, 30), (128, 4, 4, 20), (256, 4, 8, 10), (384, 6, 6, 6)):
        shape = Shape.uniform(
            hidden=hidden,
            layers=layers,
            mlp=4 * hidden,
            heads=heads,
            key=hidden // heads,
            value=hidden // heads,
            context=CONTEXT,
            vocab=VOCAB,
        )
        models: list[nn.Module] = [PlainGpt(hidden, layers, heads), Transformer(shape)]
        optimizers = [AdamW(model.parameters(), lr=1e-3, fused=True) for model in models]
        seconds: list[list[float]] = [[], []]
        for _ in range(2 + rounds):
            for times, model, optimizer in zip(seconds, models, optimizers, strict=True):
                times.append(step(model, optimizer, tokens))
        plain, ours = (statistics.median(times[2:]) for times in seconds)
        flops = step_flops(shape, Variant(), SEQUENCES, CONTEXT)
        print(
            f"h={hidden:3} N={layers}: plain {tokens[:, 1:].numel() / plain:7.0f}, "
            f"ours {tokens[:, 1:].numel() / ours:7.0f} tokens/s: {plain / ours:.2f}x; "
            f"of the peak: plain {flops / plain / peak:.0%}, ours {flops / ours / peak:.0%}"
        )


if __name__ == "__main__":
    main()
