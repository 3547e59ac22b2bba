"""Time and memory of growing: a 25M-parameter model with AdamW state doubles every dimension.

Prints two ratios, measured in one run on this machine:
- the time to grow, in training steps of the model before it (batch 8 x 128, median of five); aim: below 3;
- the peak of memory while growing beyond the old state, in sizes of the new state; aim: at most 1.2.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch.optim import AdamW

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.shape import Shape
from nasgrow.verify import PAPER

SHAPE = Shape.uniform(hidden=512, layers=8, mlp=2048, heads=8, key=64, value=64)
DOUBLE: list[Expansion] = [
    GrowHidden(1024),
    GrowMlp(4096),
    GrowKeys(128),
    GrowValues(128),
    AddHeads(16),
    InsertLayers(tuple(range(1, 9))),
]


def step(model: Transformer, optimizer: AdamW) -> float:
    """Train one step; return its seconds."""
    tokens_bs = torch.randint(PAPER.vocab, (8, PAPER.context + 1))
    start = time.perf_counter()
    optimizer.zero_grad()
    F.cross_entropy(model(tokens_bs[:, :-1]).flatten(0, 1), tokens_bs[:, 1:].flatten()).backward()
    optimizer.step()
    return time.perf_counter() - start


def state_bytes(model: Transformer, optimizer: AdamW) -> int:
    """The bytes of parameters and optimizer state."""
    moments = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
    return sum(t.numel() * t.element_size() for t in [*model.parameters(), *moments])


def resident(field: str) -> int:
    """A figure of /proc/self/status in bytes: VmRSS (now) or VmHWM (peak since the last reset)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def settle() -> None:
    """Give freed memory back, and start a new peak."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """Measure and print."""
    torch.manual_seed(0)
    model = Transformer(SHAPE, PAPER)
    optimizer = AdamW(model.parameters())
    steps = [step(model, optimizer) for _ in range(6)][1:]
    optimizer.zero_grad()
    settle()
    old, before = state_bytes(model, optimizer), resident("VmRSS")
    start = time.perf_counter()
    grow(model, optimizer, DOUBLE)
    seconds = time.perf_counter() - start
    peak = resident("VmHWM")
    new = state_bytes(model, optimizer)
    count = sum(p.numel() for p in model.parameters())
    print(f"{old / 12e6:.1f}M parameters become {count / 1e6:.0f}M")
    print(f"{old / 2**20:.0f} MiB of parameters and moments become {new / 2**20:.0f} MiB")
    print(f"growing takes {seconds:.2f} s = {seconds / statistics.median(steps):.2f} steps (aim: below 3)")
    print(f"peak beyond the old state = {(peak - before) / new:.2f} x the new state (aim: at most 1.2)")


if __name__ == "__main__":
    main()
