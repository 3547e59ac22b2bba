"""Write the tokenizer of a checkpoint for ``AutoTokenizer``, and read the tokenizer of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nasgrow.config import SavedTokens
from nasgrow.data.tokenizers import library_form
from nasgrow.errors import UserError
from nasgrow.huggingface.families import read_config
from nasgrow.strict import MOST_BYTES, read_json

HF_TOKENIZER, HF_TOKENIZER_CONFIG, GENERATION = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
)


def write_tokenizer(folder: Path, tokenizer: Path, context: int) -> dict[str, int | None]:
    """Write the files that ``AutoTokenizer`` and ``generate`` need; return the token ids for ``config.json``.

    Args:
        folder: The folder to write into.
        tokenizer: The tokenizer file of a run.
        context: The longest sequence, in tokens.

    Raises:
        UserError: The tokenizer file cannot be read, or is not that of a run.
    """
    content, end, number = library_form(tokenizer)
    (folder / HF_TOKENIZER).write_text(content, encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "pad_token": end,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    _write(folder / HF_TOKENIZER_CONFIG, settings)
    ids = {"bos_token_id": None, "eos_token_id": number, "pad_token_id": number}
    _write(folder / GENERATION, {**ids, "max_length": context})
    return ids


def saved_tokens(folder: Path) -> SavedTokens:
    """Return the data settings for a checkpoint's tokenizer: its file, and the token that ends a text.

    Raises:
        UserError: The checkpoint has no tokenizer, or does not name the token that ends a text.
    """
    path = folder / HF_TOKENIZER
    if not path.exists():
        raise UserError(f"{path}: is missing; without it the model cannot be used")
    end = _read(folder / HF_TOKENIZER_CONFIG).get("eos_token")
    end = end.get("content") if isinstance(end, dict) else end
    if not isinstance(end, str):
        end = _token(path, read_config(folder).get("eos_token_id"))
    if end is None:
        raise UserError(f"{folder / HF_TOKENIZER_CONFIG}: eos_token must name the token that ends a text")
    return SavedTokens(kind="file", path=str(path), end=end)


def _token(path: Path, number: object) -> str | None:
    """Return the added token with this id, or with the first of several ids; None without one."""
    number = number[0] if isinstance(number, list) and number else number
    for one in _read(path).get("added_tokens") or []:
        if isinstance(one, dict) and one.get("id") == number and isinstance(one.get("content"), str):
            return str(one["content"])
    return None


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    content = read_json(path, 100 * MOST_BYTES)
    return content if isinstance(content, dict) else {}


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
