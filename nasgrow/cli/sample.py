"""``nasgrow sample``: generate text with a trained model."""

from __future__ import annotations

import sys
from pathlib import Path

from nasgrow.api import load
from nasgrow.cli.next_steps import run_of


def run(path: Path, prompt: str, tokens: int, temperature: float, top: int | None, seed: int) -> int:
    """Print the prompt and the model's continuation; return 0.

    ``path`` is a run's folder, an exported model's folder or a study.
    """
    folder, what = run_of(path)
    if what is not None:
        print(what, file=sys.stderr)
    added = load(folder).generate(prompt, tokens=tokens, temperature=temperature, top=top, seed=seed)
    print(prompt + added)
    return 0
