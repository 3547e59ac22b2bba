"""Prepare a corpus: three splits of tokens on disk, written once and memory-mapped by every process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from nasgrow.config import BpeTokens, DataConfig, Hub, SavedTokens
from nasgrow.data.documents import SPLITS, collect, counted, split
from nasgrow.data.encoding import pieces, write_tokens
from nasgrow.data.hub import HubUnreachableError, wanted
from nasgrow.data.overlap import overlap
from nasgrow.data.sources import Document, open_text
from nasgrow.data.store import CacheEntry, FolderCache, default_cache, fingerprint
from nasgrow.data.tokenizers import (
    ByteTokenizer,
    SubwordTokenizer,
    Tokenizer,
    load_tokenizer,
    open_saved,
    saved_path,
    token_dtype,
    train_bpe,
)
from nasgrow.errors import UserError

CORPUS_FORMAT = 1
"""The version of the files. Increase it if the same settings and text would give different files."""

Report = Callable[[str], None]

_TOKENIZER = "tokenizer.json"
_TRAINED_ON = 100_000_000  # bytes, about; in a longer training split the tokenizer sees every n-th piece


@dataclass(frozen=True)
class Corpus:
    """Tokenised text: three read-only memory maps that share no document, and their tokenizer.

    Attributes:
        fingerprint: The hash of text, tokenizer and splits: equal fingerprints mean equal tokens.
        vocab: The size of the vocabulary.
        train: The tokens of the training split, with an end token after each document.
        validation: The tokens of the validation split.
        test: The tokens of the test split.
        tokenizer: Turns text into tokens and back.
        bytes_per_token: Bytes of text per token, by split. End tokens count as tokens, but not as text, so
            that ``loss / log(2) / bytes_per_token`` is in bits per byte with any tokenizer.
        folder: The folder with the files.
        documents: The number of documents, by split.
        overlap: The share of the test text that occurs verbatim in the training text; None if the texts are
            too short to measure it, or were prepared by a version that did not.
        cut_from: The number of documents before they were cut by position; None if they were not cut.
    """

    fingerprint: str
    vocab: int
    train: np.memmap[Any, Any]
    validation: np.memmap[Any, Any]
    test: np.memmap[Any, Any]
    tokenizer: Tokenizer
    bytes_per_token: Mapping[str, float]
    folder: Path
    documents: Mapping[str, int]
    overlap: float | None = None
    cut_from: int | None = None

    def describe(self) -> dict[str, object]:
        """Return the facts about the data that a study records."""
        return {
            "fingerprint": self.fingerprint,
            "tokens": {name: len(getattr(self, name)) for name in SPLITS},
            "documents": dict(self.documents),
            "overlap": self.overlap,
            **({} if self.cut_from is None else {"cut_from": self.cut_from}),
        }


def prepare(config: DataConfig, *, cache: Path | None = None, report: Report | None = None) -> Corpus:
    """Read and tokenise the text of a study, or open the corpus from the cache.

    Several processes may call this at once: one prepares the corpus, the others wait for it. If the hub
    cannot be reached, the newest cached corpus with the same settings is used, of whatever commit.

    Args:
        config: The text, the tokenizer and the shares of the splits.
        cache: The cache folder; ``$NASGROW_CACHE`` or ``~/.cache/nasgrow`` if left out.
        report: Called with each line of progress; None shows none.

    Raises:
        UserError: The text or the tokenizer is invalid, or the cache cannot be written.
        HubUnreachableError: The hub cannot be reached, and no cached corpus has the same settings.
    """
    say = (lambda line: None) if report is None else report
    store = FolderCache((cache or default_cache()) / "data")
    saved = open_saved(config.tokens) if isinstance(config.tokens, SavedTokens) else None
    options = _options(config)
    try:
        text = open_text(config.text)
    except HubUnreachableError:
        assert isinstance(config.text, Hub)
        found = _prepared_before(store, config.text, options)
        if found is None:
            raise
        say(f"the hub cannot be reached: using commit {found.info['text']['commit']}, prepared before")
        return _open(found)
    name = fingerprint({**options, "text": text.description})

    def make(folder: Path) -> Mapping[str, object]:
        revision = config.text.revision if isinstance(config.text, Hub) else None
        facts = _write(folder, config, text, saved, say)
        return {**options, "text": text.description, "revision": revision, **facts}

    return _open(store.get(name, make, say))


def prepared(config: DataConfig) -> Corpus | None:
    """Return the corpus if the default cache has it; None if :func:`prepare` would have to make it.

    Local files are hashed, and the hub is asked for the commit. If the hub cannot be reached, the
    newest cached corpus with the same settings counts, as in :func:`prepare`.

    Raises:
        UserError: The text does not exist or cannot be read.
    """
    store, options = FolderCache(default_cache() / "data"), _options(config)
    try:
        found = store.find(fingerprint({**options, "text": open_text(config.text).description}))
    except HubUnreachableError:
        assert isinstance(config.text, Hub)
        found = _prepared_before(store, config.text, options)
    return None if found is None else _open(found)


def _options(config: DataConfig) -> dict[str, object]:
    """Return the settings, besides the text, that determine a corpus."""
    return {
        "format": CORPUS_FORMAT,
        "tokens": _describe_tokens(config),
        "validation": config.validation,
        "test": config.test,
    }


def _describe_tokens(config: DataConfig) -> dict[str, object]:
    if isinstance(config.tokens, SavedTokens):
        try:
            content = saved_path(config.tokens).read_bytes()
        except OSError as error:
            raise UserError(f"data.tokens.path: {config.tokens.path} cannot be read: {error}") from None
        return {
            "kind": "file",
            "end": config.tokens.end,
            "content": hashlib.sha256(content).hexdigest(),
        }
    return config.tokens.model_dump(mode="json")


def _prepared_before(store: FolderCache, config: Hub, options: Mapping[str, object]) -> CacheEntry | None:
    """Return the newest cached corpus with the same settings, of any commit; None without one.

    ``options`` are those of :func:`_options`.
    """
    asked = {**options, "text": wanted(config), "revision": config.revision}
    for entry in store.entries():
        made = {key: entry.info.get(key) for key in asked}
        text = {key: value for key, value in entry.info.get("text", {}).items() if key != "commit"}
        if {**made, "text": text} == asked:
            return entry
    return None


def _write(
    folder: Path, config: DataConfig, text: Document, saved: SubwordTokenizer | None, report: Report
) -> dict[str, object]:
    """Write the files of a corpus into a folder, and return the facts that :func:`_open` needs.

    ``saved`` is the tokenizer of a file; None if the settings name none.
    """
    scratch = folder / "scratch"
    scratch.mkdir()
    report(f"reading text: {config.text.source}")
    documents = collect(text.documents(scratch), scratch / "documents", report)
    splits = split(documents.sizes, validation=config.validation, test=config.test)

    tokenizer: Tokenizer
    if saved is not None:
        tokenizer = saved
    elif isinstance(config.tokens, BpeTokens):
        report(f"training a tokenizer of {config.tokens.vocab} tokens")
        size = int(documents.sizes[splits["train"]].sum())
        every = -(-size // _TRAINED_ON)
        sample = islice(pieces(documents.read_all(splits["train"])), 0, None, every)
        tokenizer = train_bpe((piece.decode("utf-8") for piece, _ in sample), config.tokens.vocab)
    else:
        tokenizer = ByteTokenizer()
    tokenizer.save(folder / _TOKENIZER)

    report(f"tokenising {len(documents)} documents, {int(documents.sizes.sum()) / 1e6:.1f} MB")
    facts: dict[str, object] = {}
    for name in SPLITS:
        indices = splits[name]
        texts = counted(documents.read_all(indices), "tokenised", report)
        tokens = write_tokens(folder / f"{name}.bin", tokenizer, texts)
        size = int(documents.sizes[indices].sum())
        facts[name] = {"tokens": tokens, "bytes": size, "documents": len(indices)}
    tested, trained = (documents.read_all(splits[name]) for name in ("test", "train"))
    repeated = overlap(tested, trained)
    if repeated is not None and repeated > 0.01:
        report(f"{repeated:.1%} of the test text also occurs in the training text")
    versions = {package: version(package) for package in ("datasets", "tokenizers")}
    return {
        "vocab": tokenizer.vocab,
        "splits": facts,
        "overlap": repeated,
        "cut_from": documents.cut_from,
        "versions": versions,
    }


def _open(entry: CacheEntry) -> Corpus:
    info, folder = entry.info, entry.folder
    dtype = token_dtype(info["vocab"])
    splits = info["splits"]
    return Corpus(
        fingerprint=folder.name,
        vocab=info["vocab"],
        **{name: np.memmap(folder / f"{name}.bin", dtype=dtype, mode="r") for name in SPLITS},
        tokenizer=load_tokenizer(folder / _TOKENIZER),
        bytes_per_token=MappingProxyType({n: splits[n]["bytes"] / splits[n]["tokens"] for n in SPLITS}),
        folder=folder,
        documents=MappingProxyType({name: splits[name]["documents"] for name in SPLITS}),
        overlap=info.get("overlap"),
        cut_from=info.get("cut_from"),
    )
