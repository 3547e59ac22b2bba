"""Encode documents into a file of tokens, in batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from nasgrow.data.tokenizers import Tokenizer, token_dtype

_PIECE = 4_000_000  # bytes; a longer document is encoded in pieces, which bounds the memory it takes
_BATCH = 1_000_000  # bytes of short documents to encode together


def write_tokens(path: Path, tokenizer: Tokenizer, documents: Iterable[bytes]) -> int:
    """Write the tokens of documents, with an end token after each; return the number of tokens."""
    dtype = token_dtype(tokenizer.vocab)
    end = np.array([tokenizer.end], dtype=dtype).tobytes()
    with path.open("wb") as file:
        for batch in _batches(pieces(documents)):
            encoded = tokenizer.encode_all([piece for piece, _ in batch])
            for tokens, (_, last) in zip(encoded, batch, strict=True):
                file.write(tokens.astype(dtype, copy=False).tobytes())
                if last:
                    file.write(end)
        return file.tell() // dtype.itemsize


def pieces(documents: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Cut documents into pieces of bounded length; yield each with whether it is its document's last.

    A piece ends after a line if possible, else between two characters.
    """
    for document in documents:
        start = 0
        while len(document) - start > _PIECE:
            stop = document.rfind(b"\n", start, start + _PIECE) + 1
            if stop == 0:
                stop = start + _PIECE
                while document[stop] & 0xC0 == 0x80:  # within a character
                    stop -= 1
            yield document[start:stop], False
            start = stop
        yield document[start:], True


def _batches(pieces: Iterable[tuple[bytes, bool]]) -> Iterator[list[tuple[bytes, bool]]]:
    batch: list[tuple[bytes, bool]] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[0])
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
