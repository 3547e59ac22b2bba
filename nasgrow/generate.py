"""Generate text token by token, with a cache of keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from nasgrow.errors import UserError
from nasgrow.model import Cache, Transformer


@torch.no_grad()
def generate(
    model: Transformer, prompt: Sequence[int], *, temperature: float, top: int | None, seed: int
) -> Iterator[int]:
    """Yield tokens that continue ``prompt``, without end.

    When the context is full, its older half is dropped.

    Args:
        model: A causal model.
        prompt: At least one token; only the last tokens count, up to the length of the context.
        temperature: Logits are divided by it; 0 always chooses the likeliest token.
        top: Sample from this many of the likeliest tokens only; None samples from all.
        seed: The seed of the sampling.

    Raises:
        UserError: The model is not causal, the prompt is empty, the temperature is below 0 or not
            finite, or ``top`` is below 1. It is raised when the first token is asked for.
    """
    if not model.variant.causal:
        raise UserError("a bidirectional model cannot generate text: its attention is not causal")
    if not 0 <= temperature < math.inf:
        raise UserError(f"the temperature must be a number from 0, not {temperature}")
    if top is not None and top < 1:
        raise UserError(f"top must be a number of tokens from 1, not {top}")
    if not prompt:
        raise UserError("the prompt must hold at least one token")
    device = model.embedding.device
    generator = torch.Generator().manual_seed(seed)
    context = model.variant.context
    seen = list(prompt)[-context:]
    cache = Cache()
    logits_v = model(torch.tensor([seen], device=device), cache)[0, -1]
    while True:
        token = _choose(logits_v.float().cpu(), temperature, top, generator)
        yield token
        seen.append(token)
        if cache.length == context:
            seen = seen[-max(1, context // 2) :]
            cache = Cache()
            logits_v = model(torch.tensor([seen], device=device), cache)[0, -1]
        else:
            logits_v = model(torch.tensor([[token]], device=device), cache)[0, -1]


def _choose(logits_v: torch.Tensor, temperature: float, top: int | None, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_v.argmax())
    if top is not None and top < len(logits_v):
        least = logits_v.topk(top).values[-1]
        logits_v = logits_v.masked_fill(logits_v < least, -torch.inf)
    weights_v = ((logits_v - logits_v.max()) / temperature).softmax(0)
    return int(torch.multinomial(weights_v, 1, generator=generator))
