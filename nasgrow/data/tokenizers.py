"""Tokenizers: bytes, byte-pair encoding trained on the study's text, or a saved tokenizer file.

With every tokenizer, ``encode`` never returns the end token and ``decode`` leaves it out. In a token array it
only ever marks the end of a document.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nasgrow.config import BpeTokens, SavedTokens, Tokens
from nasgrow.errors import UserError
from nasgrow.strict import read_text, with_prefix

if TYPE_CHECKING:
    import tokenizers

END = "<|endoftext|>"
"""The end token of byte-pair encodings that nasgrow trains."""

LARGEST_FILE = 100_000_000
"""The largest tokenizer file, in bytes; one with 250,000 tokens has about 20 million."""

_BYTES = {"tokenizer": "bytes"}


class Tokenizer(Protocol):
    """A two-way map between text and tokens."""

    @property
    def vocab(self) -> int:
        """The size of the vocabulary; every token is below it."""

    @property
    def end(self) -> int:
        """The token that follows each document."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without an end token."""

    def encode_all(self, texts: Sequence[bytes]) -> list[NDArray[Any]]:
        """Return the tokens of each text, given as UTF-8, in order and without end tokens.

        What a text holds in place of the end token is dropped.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without end tokens; bytes that are not UTF-8 are replaced."""

    def save(self, path: Path) -> None:
        """Write one JSON file that :func:`load_tokenizer` reads."""


def token_dtype(vocab: int) -> np.dtype[Any]:
    """Return the smallest integer type that holds the tokens of a vocabulary."""
    return np.dtype(np.uint8 if vocab <= 2**8 else np.uint16 if vocab <= 2**16 else np.uint32)


def vocabulary(config: Tokens) -> int:
    """Return the size of a study's vocabulary, without reading its text.

    Raises:
        UserError: The study's tokenizer file is invalid.
    """
    if isinstance(config, BpeTokens):
        return config.vocab
    return open_saved(config).vocab if isinstance(config, SavedTokens) else ByteTokenizer.vocab


class ByteTokenizer:
    """A token for each byte of UTF-8; NUL ends a document and is dropped from text."""

    vocab = 256
    end = 0

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text; lone surrogates, which UTF-8 cannot hold, become question marks."""
        return list(text.encode("utf-8", errors="replace").replace(b"\0", b""))

    def encode_all(self, texts: Sequence[bytes]) -> list[NDArray[Any]]:
        """Return the bytes of several texts."""
        return [np.frombuffer(text.replace(b"\0", b""), dtype=np.uint8) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode bytes as UTF-8."""
        return bytes(token for token in tokens if token != self.end).decode("utf-8", errors="replace")

    def save(self, path: Path) -> None:
        """Write a file that names this kind of tokenizer."""
        path.write_text(json.dumps(_BYTES) + "\n", encoding="utf-8")


class SubwordTokenizer:
    """A tokenizer of the ``tokenizers`` library that neither adds special tokens nor cuts texts.

    Truncation and padding are switched off, and the names of special tokens in a text are ordinary
    text. It saves a file of that library, whose post-processor appends the end token, so that other
    programs end texts with it too.

    Args:
        tokenizer: The library's tokenizer, which is changed in place.
        end: The end token as text, which the vocabulary must have.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, end: str) -> None:
        from tokenizers.processors import TemplateProcessing

        token = tokenizer.token_to_id(end)
        assert token is not None, end
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        tokenizer.post_processor = TemplateProcessing(single=["$A", end], special_tokens=[(end, token)])
        self._tokenizer = tokenizer
        self.end = token
        self.vocab = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1  # ids may have gaps

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without an end token."""
        return [int(token) for token in self.encode_all([text.encode("utf-8", errors="replace")])[0]]

    def encode_all(self, texts: Sequence[bytes]) -> list[NDArray[Any]]:
        """Return the tokens of several texts, computed on all cores."""
        decoded = [text.decode("utf-8") for text in texts]
        encoded = self._tokenizer.encode_batch_fast(decoded, add_special_tokens=False)
        arrays = (np.array(one.ids, dtype=token_dtype(self.vocab)) for one in encoded)
        # A saved tokenizer may encode an ordinary word of the text as its end token.
        return [tokens[tokens != self.end] for tokens in arrays]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without end tokens."""
        kept = [int(token) for token in tokens if token != self.end]
        return self._tokenizer.decode(kept, skip_special_tokens=False)

    def save(self, path: Path) -> None:
        """Write a file of the ``tokenizers`` library."""
        path.write_text(self._tokenizer.to_str(), encoding="utf-8")


def train_bpe(texts: Iterable[str], vocab: int) -> SubwordTokenizer:
    """Train byte-level byte-pair encoding of ``vocab`` tokens; the same texts give the same tokens.

    The end token counts as one of them.

    Raises:
        UserError: The texts have too few pairs that repeat to fill the vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    reached = tokenizer.get_vocab_size()
    if reached < vocab:
        raise UserError(
            f"data.tokens.vocab: the training split is too small for {vocab} tokens, it gives {reached}: "
            f"use at most {reached}, or more text"
        )
    return SubwordTokenizer(tokenizer, END)


def open_saved(config: SavedTokens) -> SubwordTokenizer:
    """Read the tokenizer file that a study names.

    Raises:
        UserError: The file cannot be read, is not a tokenizer, lacks the end token, or encodes at random.
    """
    tokenizer = _parse(_read(saved_path(config), "data.tokens.path"), f"data.tokens.path: {config.path!r}")
    if tokenizer.token_to_id(config.end) is None:
        special = sorted(t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special)
        raise UserError(
            f"data.tokens.end: {config.end!r} is not a token of {config.path!r}; "
            f"its special tokens are {', '.join(map(repr, special[:10])) or 'none'}"
        )
    if getattr(tokenizer.model, "dropout", None):
        raise UserError(f"data.tokens.path: {config.path!r} encodes at random: set its BPE dropout to null")
    return SubwordTokenizer(tokenizer, config.end)


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a file that :meth:`Tokenizer.save` wrote.

    Raises:
        UserError: The file cannot be read or was not written by ``save``.
    """
    text = _read(path, "tokenizer")
    foreign = f"{str(path)!r} was not written by nasgrow"
    try:
        content = json.loads(text)
        if content == _BYTES:
            return ByteTokenizer()
        end = content["post_processor"]["single"][-1]["SpecialToken"]["id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise UserError(f"{foreign}: it names no end token") from None
    return SubwordTokenizer(_parse(text, foreign), end)


def library_form(path: Path) -> tuple[str, str, int]:
    """Convert a saved tokenizer for other programs that use the ``tokenizers`` library.

    Return the content of a file of that library, the end token, and the id of the end token.

    The converted tokenizer does not append the end token, because other programs encode a prompt that the
    model continues. A byte tokenizer becomes one of the library with the same ids.

    Raises:
        UserError: The file cannot be read, or was not written by :meth:`Tokenizer.save`.
    """
    tokenizer = load_tokenizer(path)
    if isinstance(tokenizer, ByteTokenizer):
        return _byte_level(), END, tokenizer.end
    content = json.loads(_read(path, "tokenizer"))
    end = content["post_processor"]["single"][-1]["SpecialToken"]["id"]
    return json.dumps({**content, "post_processor": None}, ensure_ascii=False), end, tokenizer.end


def _byte_level() -> str:
    """Return a tokenizer of the library with a token for each byte, whose id is the byte's value.

    It has no token for NUL, which is the end token, and so drops it from text.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = {_byte_letter(byte): byte for byte in range(1, 256)}
    tokenizer = Tokenizer(models.BPE({END: ByteTokenizer.end, **letters}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    return tokenizer.to_str()


def _byte_letter(byte: int) -> str:
    """Return the letter by which the library represents a byte: itself if printable, else one beyond 255."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte if byte in plain else 256 + sum(other not in plain for other in range(byte)))


def saved_path(config: SavedTokens) -> Path:
    """Return the path of a study's tokenizer file, with ``~`` expanded; it need not exist."""
    return Path(os.path.expanduser(config.path))


def _read(path: Path, what: str) -> str:
    return with_prefix(what, partial(read_text, path, LARGEST_FILE))


def _parse(text: str, what: str) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{what} is not a file of the tokenizers library: {error}") from None
