"""``nasgrow grow``: checkpoints of the real library, grown on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nasgrow.errors import UserError
from nasgrow.expansions import diff
from nasgrow.experiments.transfer import final_shape
from nasgrow.export import load_model
from nasgrow.growth import grow
from nasgrow.huggingface import offline
from nasgrow.huggingface.checkpoint import Checkpoint
from nasgrow.huggingface.offline import grow_checkpoint, logits_of
from nasgrow.huggingface.shards import INDEX, SINGLE
from nasgrow.operators import operator_from
from tests.cli.calling import call
from tests.huggingface.library import CASES, LIMIT, LLAMA3, difference, load, logits, make, tokens

SIZES = "hidden=48,layers=3,mlp=64,heads=4"


def grown(source: Path, to: Path, sizes: str = SIZES, operator: str = "preserve", **more: Any) -> Any:
    return grow_checkpoint(
        source, lambda shape: final_shape(sizes, shape, "--to"), to, operator=operator_from(operator), **more
    )


@pytest.mark.parametrize("case", CASES)
def test_what_is_grown_on_disk_is_what_is_grown_in_memory(case: str, tmp_path: Path) -> None:
    family, fields = CASES[case]
    wanted = logits(make(family, tmp_path / "old", **fields), tokens())
    (tmp_path / "old" / "tokenizer.json").write_text("{}")
    found = grown(tmp_path / "old", tmp_path / "new", largest=50_000)
    assert found.difference < LIMIT
    assert found.divergence < LIMIT
    assert difference(logits(load(tmp_path / "new"), tokens()), wanted) < LIMIT

    model = load_model(tmp_path / "old")
    grow(model, None, diff(model.shape, final_shape(SIZES, model.shape)))
    new = load_model(tmp_path / "new")
    assert new.shape == model.shape
    for name, parameter in model.named_parameters():
        if model.variant.qk_norm and name.endswith((".query", ".key")):
            continue  # rescaled, as the library's epsilon is one for all norms
        assert torch.equal(new.get_parameter(name), parameter), name
    kept = {path.name for path in (tmp_path / "new").iterdir()}
    assert kept >= {INDEX, "config.json", "generation_config.json", "tokenizer.json", "README.md"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_what_a_configuration_says_besides_is_kept(tmp_path: Path) -> None:
    make("llama", tmp_path / "old", rope_parameters=LLAMA3, eos_token_id=7)
    grown(tmp_path / "old", tmp_path / "new")
    old, new = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("old", "new"))
    assert new["rope_parameters"] == old["rope_parameters"]
    assert new["eos_token_id"] == 7
    changed = {name for name in old if old[name] != new[name]}
    assert changed == {
        *("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads"),
        *("num_key_value_heads", "rms_norm_eps"),
    }
    grown(tmp_path / "old", tmp_path / "odd", "hidden=47")
    odd = json.loads((tmp_path / "odd" / "config.json").read_text())
    assert (odd["model_type"], odd["eos_token_id"]) == ("mistral", 7)


def test_logits_are_the_same_layer_by_layer(tmp_path: Path) -> None:
    make("qwen3", tmp_path, tie_word_embeddings=True)
    checkpoint, tokens_s = Checkpoint(tmp_path), tokens()[0]
    streamed = logits_of(checkpoint, tokens_s)
    assert difference(streamed, checkpoint.model()(tokens_s[None])[0]) < LIMIT


@pytest.mark.parametrize(
    ("operator", "sizes", "same"),
    [
        ("stack", "layers=4", False),
        ("net2net(noise=0)", "hidden=40,mlp=50,heads=3", True),
        ("net2net(noise=0) + stack", "hidden=48,layers=4", False),
        ("lemon", "hidden=60,layers=3,mlp=80", True),
        ("staged", "hidden=48,mlp=80,heads=4,layers=4", True),
    ],
)
def test_other_operators_are_told_apart_by_what_they_preserve(
    operator: str, sizes: str, same: bool, tmp_path: Path
) -> None:
    make("llama", tmp_path / "old")
    assert grown(tmp_path / "old", tmp_path / "new", sizes, operator).same == same
    model, shape = load_model(tmp_path / "old"), load_model(tmp_path / "new").shape
    grow(model, None, diff(model.shape, shape), operator=operator_from(operator))
    assert difference(load_model(tmp_path / "new")(tokens()), model(tokens())) < LIMIT


@pytest.mark.parametrize(
    ("sizes", "operator", "message"),
    [
        ("hidden=24", "preserve", "has that shape already"),
        ("hidden=20", "preserve", "^hidden size cannot shrink from 24 to 20$"),
        ("width=20", "preserve", "^--to: must be sizes of hidden, layers, "),
        ("key=16", "preserve", "^value: the library's heads have keys and values of one size, not 16 and 8$"),
        ("hidden=48", "stack", "^operator stack cannot grow hidden"),
        ("hidden=48", "masked", "^operator masked opens masks while a model trains"),
        ("mlp=48", "gradmax", "^operator gradmax learns from batches, and none were given$"),
        ("layers=1001", "preserve", "^--to: layers must be at most 1000"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(
    sizes: str, operator: str, message: str, tmp_path: Path
) -> None:
    make("llama", tmp_path / "old")
    with pytest.raises(UserError, match=message):
        grown(tmp_path / "old", tmp_path / "new", sizes, operator)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def half(folder: Path) -> None:
    """A checkpoint in bfloat16."""
    make("llama", folder)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(folder / SINGLE).items()}
    save_file(tensors, folder / SINGLE, {"format": "pt"})


@pytest.mark.parametrize(("sizes", "written"), [("hidden=96", torch.bfloat16), ("hidden=48", torch.float32)])
def test_half_precision_is_kept_where_nothing_is_rounded(
    sizes: str, written: torch.dtype, tmp_path: Path
) -> None:
    half(tmp_path / "old")
    told: list[str] = []
    assert grown(tmp_path / "old", tmp_path / "new", sizes, told=told.append).same
    assert load_model(tmp_path / "new").embedding.dtype == written
    assert bool(told) == (written == torch.float32)
    assert json.loads((tmp_path / "new" / "config.json").read_text())["dtype"] in str(written)


def test_a_dtype_that_rounds_is_written_if_asked_for_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    half(tmp_path / "old")
    monkeypatch.chdir(tmp_path)
    command = "grow", "--from", "old", "--to", "hidden=48", "--out"
    assert call(monkeypatch, *command, "rounded", "--dtype", "bfloat16") == 1
    assert capsys.readouterr().out.startswith("rounded: another function: logits differ by at most ")
    assert load_model(Path("rounded")).embedding.dtype == torch.bfloat16
    assert call(monkeypatch, *command, "whole") == 0
    told = capsys.readouterr()
    assert told.out.startswith("whole: the same function: logits differ by at most ")
    assert told.err == "writes float32: bfloat16 would round rescaled values\n"


def test_a_check_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("llama", tmp_path / "old")
    monkeypatch.setattr(offline, "fresh", lambda entry, sizes, generator: torch.full(sizes, torch.nan))
    with pytest.raises(UserError, match=r"new: is not written: .* here they differ by nan of the largest"):
        grown(tmp_path / "old", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


KILLED = """
import os, signal
from functools import partial
from pathlib import Path
from nasgrow.huggingface import offline
from nasgrow.operators import operator_from
from nasgrow.experiments.transfer import final_shape
offline.compare = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
offline.grow_checkpoint(
    Path("old"), partial(final_shape, "hidden=48"), Path("new"), operator=operator_from("preserve")
)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    make("llama", tmp_path / "old")
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "new").exists()
    assert grown(tmp_path / "old", tmp_path / "new", "hidden=48").same
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]
