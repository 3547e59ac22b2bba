"""``nasgrow sample``: let a trained model write."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from nasgrow.data import load_tokenizer
from nasgrow.generate import generate
from nasgrow.training.records import TOKENIZER
from nasgrow.training.resume import trained


def run(folder: Path, prompt: str, tokens: int, temperature: float, top: int | None, seed: int) -> int:
    """Print the prompt and what the model of the run adds to it; return the exit code."""
    model = trained(folder).model
    tokenizer = load_tokenizer(folder / TOKENIZER)
    start = tokenizer.encode(prompt) or [tokenizer.end]
    added: list[int] = []
    for token in islice(generate(model, start, temperature=temperature, top=top, seed=seed), tokens):
        if token == tokenizer.end:
            break
        added.append(token)
    print(prompt + tokenizer.decode(added))
    return 0
