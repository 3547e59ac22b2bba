"""Tiny models of the real library, which compute in float64 all the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM

_AUTO: Any = AutoModelForCausalLM


class _Double(TorchFunctionMode):
    """Norms, RoPE and softmax of the library go through float32 in any model; here through float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        def double(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        if func is Tensor.float:
            func = Tensor.double
        return func(*map(double, args), **{name: double(value) for name, value in (kwargs or {}).items()})


@contextmanager
def in_float64() -> Iterator[None]:
    """The library computes in float64 within."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Double(), torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(before)


SIZES = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 16,
    "sliding_window": None,
    "rms_norm_eps": 1e-3,
}


LIMIT = 1e-13
"""The largest difference of a logit, relative to the largest; measured at 3e-15."""

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}

CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama, one key": ("llama", {"num_key_value_heads": 1}),
    "llama, a key each": ("llama", {"num_key_value_heads": 4, "head_dim": 16}),
    "llama, key 12": ("llama", {"head_dim": 12}),
    "llama 3.1": ("llama", {"rope_parameters": LLAMA3}),
    "llama, linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 99.0, "factor": 3.0}},
    ),
    "mistral": ("mistral", {}),
    "mistral tied": ("mistral", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3 tied": ("qwen3", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
}


def make(family: str, folder: Path, **fields: Any) -> nn.Module:
    """Write a random model of a family into a folder; none of its tensors is as it was made."""
    with in_float64():
        config = AutoConfig.for_model(family, **{**SIZES, **fields})
        model: Any = _AUTO.from_config(config, dtype=torch.float64).eval()
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        model.save_pretrained(folder)
    assert isinstance(model, nn.Module)
    return model


def load(folder: Path) -> nn.Module:
    """The model that the library reads from a folder; every tensor must have been there."""
    with in_float64():
        model, told = _AUTO.from_pretrained(folder, dtype=torch.float64, output_loading_info=True)
    assert not any(told.values()), told
    assert isinstance(model, nn.Module)
    return model.eval()


def logits(model: nn.Module, tokens_bs: Tensor) -> Tensor:
    """What the library computes."""
    with in_float64():
        found: Tensor = model(tokens_bs).logits
    return found


def tokens() -> Tensor:
    """Those that models are compared on."""
    return torch.randint(31, (3, 16), generator=torch.Generator().manual_seed(1))


def difference(found: Tensor, wanted: Tensor) -> float:
    """The largest, relative to the largest value."""
    return float(((found - wanted).abs().max() / wanted.abs().max()).detach())
