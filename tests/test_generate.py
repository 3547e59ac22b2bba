"""Generating text: with the cache as without it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch

from nasgrow.generate import generate
from nasgrow.model import Transformer
from nasgrow.verify import BASE, PAPER
from tests.steps import perturb


def make(**fields: Any) -> Transformer:
    model = Transformer(BASE, replace(PAPER, **fields), dtype=torch.float64)
    perturb(model)
    return model


def slow_greedy(model: Transformer, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens, each from a whole forward pass over what the model may see."""
    context = model.variant.context
    seen, added = prompt[-context:], []
    for _ in range(count):
        added.append(int(model(torch.tensor([seen]))[0, -1].argmax()))
        seen = [*seen, added[-1]]
        if len(seen) > context:
            seen = seen[-(context // 2) :]
    return added


@pytest.mark.parametrize("positions", ["learned", "rope", "none"])
@pytest.mark.parametrize("prompt", [[3], [1, 2, 3], list(range(20))])
def test_greedy_text_is_that_of_whole_forward_passes(positions: str, prompt: list[int]) -> None:
    model = make(positions=positions)
    found = list(islice(generate(model, prompt, temperature=0.0, top=None, seed=0), 40))
    assert found == slow_greedy(model, prompt, 40)


def test_the_seed_decides() -> None:
    model = make()
    a, b, c = (list(islice(generate(model, [1], temperature=1.0, top=None, seed=s), 30)) for s in (0, 0, 1))
    assert a == b
    assert a != c


def test_top_one_is_greedy() -> None:
    model = make()
    greedy = list(islice(generate(model, [1], temperature=0.0, top=None, seed=0), 20))
    assert list(islice(generate(model, [1], temperature=1.0, top=1, seed=0), 20)) == greedy


def test_a_bidirectional_model_and_an_empty_prompt_are_refused() -> None:
    with pytest.raises(ValueError, match="bidirectional"):
        next(generate(make(causal=False), [1], temperature=1.0, top=None, seed=0))
    with pytest.raises(ValueError, match="top must be a number of tokens from 1, not 0"):
        next(generate(make(), [1], temperature=1.0, top=0, seed=0))
    with pytest.raises(ValueError, match="at least one token"):
        next(generate(make(), [], temperature=1.0, top=None, seed=0))
