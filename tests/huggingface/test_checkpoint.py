"""Checkpoints of the real library as models of ours, and back, in float64."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import nasgrow
from nasgrow.errors import UserError
from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues, InsertLayers
from nasgrow.growth import grow
from nasgrow.huggingface.checkpoint import Checkpoint, new_folder, write_checkpoint
from nasgrow.huggingface.shards import INDEX, SINGLE
from nasgrow.model import Transformer
from nasgrow.shape import Shape, Variant
from tests.huggingface.library import CASES, LIMIT, LLAMA3, difference, load, logits, make, tokens
from tests.steps import perturb

EVENTS: Mapping[str, Sequence[Expansion]] = {
    "nothing": (),
    "hidden": (GrowHidden(44),),
    "mlp": (GrowMlp(56),),
    "heads": (AddHeads(5),),
    "layers": (InsertLayers((0, 2)),),
    "key and value": (GrowKeys(32), GrowValues(32)),
    "key and value, no power of two": (GrowKeys(20), GrowValues(20)),
    "everything": (GrowHidden(48), GrowMlp(48), AddHeads(5), InsertLayers((1,))),
}


def write(to: Path, model: Transformer, largest: int = 10**9) -> None:
    with new_folder(to) as folder:
        write_checkpoint(
            folder,
            model.shape,
            model.variant,
            lambda entry: model.get_parameter(entry.name),
            model.embedding.dtype,
            largest=largest,
        )


@pytest.mark.parametrize("case", CASES)
def test_each_family_is_read_and_written_exactly_after_growth_in_every_dimension(
    case: str, tmp_path: Path
) -> None:
    family, fields = CASES[case]
    wanted = logits(make(family, tmp_path / "theirs", **fields), tokens())
    for title, event in EVENTS.items():
        model = nasgrow.load(tmp_path / "theirs").model
        assert difference(model(tokens()), wanted) < LIMIT
        if model.variant.key_fixed is not None and any(isinstance(one, GrowKeys) for one in event):
            with pytest.raises(UserError, match=r"^key cannot grow: (qk_norm|rope_frequencies) "):
                grow(model, None, event)
            continue
        grow(model, None, event)
        write(tmp_path / title, model, largest=30_000)
        assert (tmp_path / title / INDEX).exists(), "several files"
        assert difference(logits(load(tmp_path / title), tokens()), wanted) < LIMIT, title
        back = nasgrow.load(tmp_path / title).model
        assert difference(back(tokens()), wanted) < LIMIT, title
        assert back.shape == model.shape
        assert (back.variant.rope_frequencies is None) == (model.variant.rope_frequencies is None)


FAMILIES = ("llama", "llama 3.1", "mistral", "qwen2", "qwen3")


@pytest.mark.parametrize("groups", [1, 2, 4], ids=["MQA", "GQA", "MHA"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("case", FAMILIES)
def test_embeddings_and_heads_may_be_shared_in_each_family(
    case: str, tied: bool, groups: int, tmp_path: Path
) -> None:
    family, fields = CASES[case]
    fields = {**fields, "tie_word_embeddings": tied, "num_key_value_heads": groups}
    wanted = logits(make(family, tmp_path / "theirs", **fields), tokens())
    model = nasgrow.load(tmp_path / "theirs").model
    assert (model.variant.tied, model.variant.queries) == (tied, 4 // groups)
    assert difference(model(tokens()), wanted) < LIMIT
    grow(model, None, EVENTS["everything"])
    write(tmp_path / "grown", model)
    assert difference(logits(load(tmp_path / "grown"), tokens()), wanted) < LIMIT


OURS = Variant(31, 16, "silu", gated=True, positions="rope", final_norm=True, queries=2)
SHAPE = Shape.uniform(hidden=24, layers=2, mlp=20, heads=2, key=8, value=8)


@pytest.mark.parametrize(
    ("variant", "hidden", "family"),
    [
        (OURS, 24, "llama"),
        (OURS, 25, "seed_oss"),
        (Variant(31, 16, "gelu", gated=True, positions="rope", final_norm=True, biases=False), 25, "mistral"),
        (Variant(31, 16, "relu", True, True, "rope", True, True, biases=True, qkv_bias=True), 24, "seed_oss"),
        (
            Variant(31, 16, "silu", True, True, "rope", True, biases=False, qkv_bias=True, qk_norm=True),
            24,
            "qwen3",
        ),
    ],
)
def test_models_of_ours_are_written_in_the_family_that_can_hold_them(
    variant: Variant, hidden: int, family: str, tmp_path: Path
) -> None:
    shape = Shape(hidden, SHAPE.layers)
    model = Transformer(shape, variant, dtype=torch.float64)
    perturb(model)
    write(tmp_path / "hf", model)
    theirs = load(tmp_path / "hf")
    assert getattr(theirs.config, "model_type", None) == family
    assert difference(logits(theirs, tokens()), model(tokens())) < LIMIT
    back = nasgrow.load(tmp_path / "hf").model
    assert difference(back(tokens()), model(tokens())) < LIMIT
    assert set(dict(back.named_parameters())) == set(dict(model.named_parameters()))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "gemma"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": "24"}, "hidden_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"hidden_act": "gelu_new"}, "hidden_act"),
        ({"rms_norm_eps": True}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"model_type": "mistral", "sliding_window": 8}, "sliding_window"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8}, "sliding_window"),
        ({"layer_types": ["chunked_attention"]}, "layer_types"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_parameters.rope_type"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor"),
        ({"rope_parameters": {"rope_theta": 1.0}}, "rope_parameters.rope_theta"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 9.0}}}, "rope_parameters.full_attention"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic"}}, "rope_scaling.rope_type"),
        ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "rope_parameters: high_freq_factor"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters: short_factor"),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "short_factor": [1.0] * 4,
                    "long_factor": [2.0] * 4,
                }
            },
            "rope_parameters: long_factor",
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "short_factor": [1.0] * 4,
                    "long_factor": [1.0] * 4,
                }
            },
            "rope_parameters: attention_factor",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_represented_is_refused_by_its_field(
    changes: dict[str, Any], field: str, tmp_path: Path
) -> None:
    make("llama", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(UserError, match=f"^{re.escape(f'{path}: {field}')}"):
        nasgrow.load(tmp_path)


def test_a_window_as_long_as_the_context_is_none(tmp_path: Path) -> None:
    model = make("mistral", tmp_path, sliding_window=8)
    with pytest.raises(UserError, match=r"a context of at most 8 sees all of them$"):
        Checkpoint(tmp_path)
    short = tokens()[:, :8]
    assert difference(Checkpoint(tmp_path, context=8).model()(short), logits(model, short)) < LIMIT
    with pytest.raises(UserError, match=r"max_position_embeddings: is 16, less than the context of 17$"):
        Checkpoint(tmp_path, context=17)


def test_files_of_older_releases_are_read(tmp_path: Path) -> None:
    wanted = logits(make("llama", tmp_path, rope_parameters=LLAMA3), tokens())
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"], config["torch_dtype"] = rope.pop("rope_theta"), config.pop("dtype")
    path.write_text(json.dumps({**config, "rope_scaling": rope}))
    assert difference(nasgrow.load(tmp_path).model(tokens()), wanted) < LIMIT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "model.norm.weight is missing"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(23)}),
            r"model.norm.weight is \(23,\), not \(24,\)",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.extra": torch.zeros(2)}),
            "model.layers.0.extra is not a tensor of this kind of model",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(24, dtype=torch.int8)}),
            "model.norm.weight is I8; weights must be floating",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(change: Any, message: str, tmp_path: Path) -> None:
    make("llama", tmp_path)
    tensors = load_file(tmp_path / SINGLE)
    change(tensors)
    save_file(tensors, tmp_path / SINGLE)
    with pytest.raises(UserError, match=f"{message}$"):
        nasgrow.load(tmp_path)


def test_biases_that_we_do_not_have_must_be_zero(tmp_path: Path) -> None:
    model = make("llama", tmp_path, attention_bias=True, mlp_bias=True)
    with pytest.raises(UserError, match=r"is not zero, and our models have no such bias$"):
        nasgrow.load(tmp_path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("gate_proj.bias", "o_proj.bias")):
                parameter.zero_()
    tensors = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    save_file(tensors, tmp_path / SINGLE)
    assert difference(nasgrow.load(tmp_path).model(tokens()), logits(model, tokens())) < LIMIT


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "must hold weight_map"),
        ('{"weight_map": []}', "must hold weight_map"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "is not a file of the folder$"),
        ('{"weight_map": {"a": "x.safetensors"}}', "is not a safetensors file: "),
    ],
)
def test_an_index_that_is_damaged_is_one_line(index: str, message: str, tmp_path: Path) -> None:
    make("llama", tmp_path)
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(UserError, match=message):
        nasgrow.load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_configuration_that_is_damaged_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config.json: "):
        nasgrow.load(tmp_path)


@pytest.mark.parametrize(
    ("shape", "variant", "field"),
    [
        (SHAPE, Variant(31, 16), "variant.gated"),
        (SHAPE, Variant(31, 16, gated=True), "variant.positions"),
        (SHAPE, Variant(31, 16, gated=True, positions="rope"), "variant.final_norm"),
        (SHAPE, Variant(31, 16, "silu", True, False, "rope", True), "variant.causal"),
        (SHAPE, Variant(31, 16, "silu", True, True, "rope", True, norm="after"), "variant.norm"),
        (SHAPE, Variant(31, 16, "silu", True, True, "rope", True, qk_norm=True), "variant.biases"),
        (
            SHAPE,
            Variant(31, 16, "silu", True, True, "rope", True, rope_frequencies=(1.0, 0.5, 0.0, 0.1)),
            "variant.rope_frequencies",
        ),
        (GrowMlp(30, layers=(1,))(SHAPE), OURS, "layers"),
        (GrowKeys(10)(SHAPE), OURS, "value"),
        (GrowValues(10)(SHAPE), OURS, "value"),
        (AddHeads(3, key=4)(SHAPE), OURS, "heads"),
    ],
)
def test_a_model_of_ours_that_no_family_holds_is_refused_by_its_field(
    shape: Shape, variant: Variant, field: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"^{field}: "):
        write(tmp_path / "hf", Transformer(shape, variant))
    assert list(tmp_path.iterdir()) == []


def test_mixed_precision_is_read_in_the_widest(tmp_path: Path) -> None:
    make("llama", tmp_path)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(tmp_path / SINGLE).items()}
    save_file(tensors, tmp_path / SINGLE)
    assert nasgrow.load(tmp_path).model.embedding.dtype == torch.bfloat16
    save_file({**tensors, "model.norm.weight": torch.ones(24)}, tmp_path / SINGLE)
    model = nasgrow.load(tmp_path).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "mine").touch()
    with pytest.raises(UserError, match=r"hf: exists already; choose another folder$"):
        write(tmp_path / "hf", Transformer(SHAPE, OURS))
    with pytest.raises(UserError, match="cannot be written: "):
        write(tmp_path / "hf" / "mine" / "here", Transformer(SHAPE, OURS))
    assert [path.name for path in tmp_path.rglob("*")] == ["hf", "mine"]
