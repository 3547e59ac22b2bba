"""Configurations as published models have them, but for their sizes: read, grown and written exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

import nasgrow
from nasgrow.experiments.transfer import final_shape
from nasgrow.huggingface.families import common_window
from nasgrow.huggingface.offline import grow_checkpoint
from nasgrow.huggingface.shards import SINGLE
from nasgrow.operators import PRESERVE
from tests.huggingface.library import LIMIT, difference, in_float64, load, logits, make, tokens

_MODELS: Any = AutoModelForCausalLM

_META = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "use_cache": True,
}
_SMOL = {
    **_META,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "is_llama_config": True,
    "hidden_size": 3 * 64,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "rope_interleaved": False,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
_MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_act": "silu",
    "hidden_size": 2 * 128,
    "max_position_embeddings": 32_768,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_QWEN = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "max_window_layers": 24,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}

PUBLISHED: Mapping[str, dict[str, Any]] = {
    "Llama 2 7B": {
        **_META,
        "hidden_size": 2 * 128,
        "max_position_embeddings": 4096,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_scaling": None,
        "torch_dtype": "float16",
    },
    "Llama 3 8B": {
        **_META,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_size": 2 * 128,
        "max_position_embeddings": 8192,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_scaling": None,
        "rope_theta": 500_000.0,
    },
    "Llama 3.2 1B": {
        **_META,
        "attention_bias": False,
        "head_dim": 64,
        "hidden_size": 4 * 64,
        "max_position_embeddings": 131_072,
        "mlp_bias": False,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500_000.0,
        "tie_word_embeddings": True,
    },
    "SmolLM 135M": {**_SMOL, "max_position_embeddings": 2048, "rope_theta": 10_000.0},
    "SmolLM2 135M": {**_SMOL, "max_position_embeddings": 8192, "rope_theta": 100_000},
    "Mistral 7B v0.1": {**_MISTRAL, "rope_theta": 10_000.0, "sliding_window": 4096},
    "Mistral 7B v0.3": {**_MISTRAL, "head_dim": None, "rope_theta": 1e6, "sliding_window": None},
    "Qwen2.5 0.5B": {
        **_QWEN,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 4 * 64,
        "max_position_embeddings": 32_768,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 32_768,
        "use_mrope": False,
    },
    "Qwen3 0.6B": {
        **_QWEN,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 128,
        "hidden_size": 2 * 64,
        "max_position_embeddings": 40_960,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_scaling": None,
        "sliding_window": None,
    },
}
KEY_FIXED = {"Llama 3.2 1B", "Qwen3 0.6B"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_read_and_grown_exactly(name: str, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    sizes = {"intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 31}
    (old / "config.json").write_text(json.dumps({**PUBLISHED[name], **sizes}))
    with in_float64():
        theirs = _MODELS.from_config(AutoConfig.from_pretrained(old), dtype=torch.float64).eval()
        generator = torch.Generator().manual_seed(0)
        for parameter in theirs.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    weights = {name: one.detach().contiguous() for name, one in theirs.named_parameters()}
    save_file(weights, old / SINGLE, {"format": "pt"})
    wanted = logits(theirs, tokens())

    model = nasgrow.load(old, context=16).model
    assert difference(model(tokens()), wanted) < LIMIT
    assert (model.variant.key_fixed is not None) == (name in KEY_FIXED)
    hidden, heads = 2 * model.shape.hidden, 2 * model.shape.layers[0].head_count
    to = f"hidden={hidden},layers=3,mlp=64,heads={heads}"
    found = grow_checkpoint(old, lambda shape: final_shape(to, shape), tmp_path / "new", operator=PRESERVE)
    assert found.difference < LIMIT
    assert difference(logits(load(tmp_path / "new"), tokens()), wanted) < LIMIT
    kept = ("sliding_window", "max_position_embeddings", "rope_theta", "rope_scaling", "model_type")
    before, after = (json.loads((path / "config.json").read_text()) for path in (old, tmp_path / "new"))
    assert {field: after.get(field) for field in kept} == {field: before.get(field) for field in kept}


@pytest.mark.parametrize("window", [4, 16, 99])
def test_growth_is_exact_within_a_window_and_beyond(window: int, tmp_path: Path) -> None:
    wanted = logits(make("mistral", tmp_path / "old", sliding_window=window), tokens())
    grow_checkpoint(
        tmp_path / "old",
        lambda shape: final_shape("hidden=48,layers=3,mlp=64,heads=3", shape),
        tmp_path / "new",
        operator=PRESERVE,
    )
    assert difference(logits(load(tmp_path / "new"), tokens()), wanted) < LIMIT


@pytest.mark.parametrize(
    ("kinds", "window"), [({}, 8), ({"layer_types": None}, 8), ({"layer_types": ["sliding_attention"]}, None)]
)
def test_the_window_of_a_mistral_model_is_common_unless_each_layer_has_a_kind(
    kinds: dict[str, Any], window: int | None
) -> None:
    config = {"model_type": "mistral", "sliding_window": 8, "max_position_embeddings": 16}
    assert common_window(config | kinds) == window
