"""``nasgrow export --format hf`` and ``nasgrow import``, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import nasgrow
from nasgrow.data import load_tokenizer
from nasgrow.errors import UserError
from nasgrow.training.resume import trained
from tests.cli.calling import call
from tests.huggingface.library import make
from tests.steps import tokens_for
from tests.training.runs import make_config, text_files

_MODELS: Any = AutoModelForCausalLM
_TOKENIZERS: Any = AutoTokenizer

LIKE_LLAMA = {"activation": "silu", "gated": True, "positions": "rope", "final_norm": True, "biases": False}
GROWING = {
    "start": {"hidden": 8, "layers": 1, "mlp": 16, "heads": 2, "key": 4, "value": 4},
    "events": [{"at": 0.5, "grow": [{"expand": "hidden", "to": 12}, {"expand": "layers", "at": [1]}]}],
}


def run_file(folder: Path, tokens: dict[str, Any], **changes: Any) -> None:
    config = make_config(text_files(folder / "text"), schedule=GROWING, budget={"flops": 1e7}, **changes)
    document = config.model_dump(mode="json", exclude_none=True)
    document["data"]["tokens"] = tokens
    (folder / "run.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("tokens", [{"kind": "bytes"}, {"kind": "bpe", "vocab": 290}], ids=["bytes", "bpe"])
def test_a_run_is_exported_and_loaded_by_the_library_and_by_us(
    tokens: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file(folder, tokens, variant=LIKE_LLAMA)
    assert call(monkeypatch, "train", "run.yaml", "--out", "run", "--quiet") == 0
    (folder / "run" / "test.json").write_text('{"test": 1.23456, "tokens": 9}')
    assert call(monkeypatch, "export", "run", "--format", "hf", "--to", "hf") == 0
    (told,) = capsys.readouterr().out.splitlines()[-1:]
    assert told.startswith("wrote hf (a Hugging Face checkpoint, after step ")
    assert told.endswith("; load it with AutoModelForCausalLM.from_pretrained('hf') or nasgrow.load('hf')")
    ours, theirs = trained(folder / "run").model, _MODELS.from_pretrained("hf")
    tokens_bs = tokens_for(ours.variant)
    with torch.no_grad():
        wanted = ours(tokens_bs)
        assert (theirs(tokens_bs).logits - wanted).abs().max() < 1e-5 * wanted.abs().max()
        assert torch.equal(nasgrow.load("hf").model(tokens_bs), wanted)

    own, text = load_tokenizer(folder / "run" / "tokenizer.json"), "grow wide\n  «deep» \0 <|endoftext|>"
    tokenizer = _TOKENIZERS.from_pretrained("hf")
    plain = text.replace(" <|endoftext|>", "")  # to the library its name in a text is the token
    assert tokenizer(plain)["input_ids"] == own.encode(plain)
    assert tokenizer.decode(own.encode(plain)) == own.decode(own.encode(plain))
    assert tokenizer.eos_token_id == own.end == theirs.generation_config.eos_token_id

    card = (folder / "hf" / "README.md").read_text(encoding="utf-8")
    assert "| test loss | 1.2346 nats per token |" in card
    assert "at 0.5: hidden 12, 1 more layer (at 1)" in card
    assert f"{json.loads((folder / 'run' / 'result.json').read_text())['validation']:.4f} nats" in card

    assert call(monkeypatch, "export", "run", "--format", "hf", "--to", "hf") == 2
    assert "hf: exists already; choose another folder" in capsys.readouterr().err
    assert call(monkeypatch, "import", "hf", "--to", "back", "--context", "8") == 0
    back = nasgrow.load("back").model
    assert back.variant.context == nasgrow.load("hf", context=8).model.variant.context == 8
    with pytest.raises(UserError, match=r"^context: is 8 in back, and cannot be 9$"):
        nasgrow.load("back", context=9)
    with torch.no_grad():
        assert torch.equal(back(tokens_bs[:, :8]), ours(tokens_bs[:, :8]))
    assert load_tokenizer(folder / "back" / "tokenizer.json").encode(plain) == own.encode(plain)


def test_a_model_that_the_library_cannot_hold_is_refused_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file(folder, {"kind": "bytes"})
    assert call(monkeypatch, "train", "run.yaml", "--out", "run", "--quiet") == 0
    before = sorted(folder.iterdir())
    assert call(monkeypatch, "export", "run", "--format", "hf", "--to", "hf") == 2
    assert capsys.readouterr().err.startswith("nasgrow: variant.gated: ")
    assert sorted(folder.iterdir()) == before


def test_a_checkpoint_without_a_usable_tokenizer_is_not_imported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make("llama", folder / "hf")
    assert call(monkeypatch, "import", "hf", "--to", "ours") == 2
    assert "tokenizer.json: is missing" in capsys.readouterr().err
    (folder / "hf" / "tokenizer.json").write_text("{}")
    assert call(monkeypatch, "import", "hf", "--to", "ours") == 2
    assert "tokenizer_config.json: eos_token must name the token" in capsys.readouterr().err
    (folder / "hf" / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert call(monkeypatch, "import", "hf", "--to", "ours") == 2
    assert "is not a file of the tokenizers library" in capsys.readouterr().err
    assert not Path("ours").exists()
