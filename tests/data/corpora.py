"""Small texts on disk, and the settings that read them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from nasgrow.config import ByteTokens, DataConfig, Files, Tokens
from nasgrow.data import Corpus

WORDS = [
    "a",
    "model",
    "grows",
    "while",
    "it",
    "trains",
    "every",
    "layer",
    "wider",
    "than",
    "né",
    "中文",
    "🙂",
]


def sentences(count: int, *, words: int = 30, seed: int = 0) -> list[str]:
    """Texts that all differ."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=words)) + f" {number}.\n" for number in range(count)]


def write_texts(folder: Path, texts: Iterable[str], *, name: str = "{:04}.txt") -> None:
    """One file for each text."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        (folder / name.format(number)).write_bytes(text.encode())


def files(*paths: Path | str, column: str = "text") -> Files:
    return Files(source="files", paths=[str(path) for path in paths], column=column)


def data(
    *paths: Path | str, tokens: Tokens | None = None, validation: float = 0.05, test: float = 0.05
) -> DataConfig:
    return DataConfig(text=files(*paths), tokens=tokens or ByteTokens(), validation=validation, test=test)


def documents(corpus: Corpus) -> dict[str, list[str]]:
    """The documents of each split of a corpus."""
    found = {}
    for split in ("train", "validation", "test"):
        texts: list[str] = []
        document: list[int] = []
        for token in getattr(corpus, split).tolist():
            if token == corpus.tokenizer.end:
                texts.append(corpus.tokenizer.decode(document))
                document = []
            else:
                document.append(token)
        assert not document, "the last document has no end token"
        found[split] = texts
    return found


def all_documents(corpus: Corpus) -> list[str]:
    """The documents of all splits, in their order."""
    return [text for texts in documents(corpus).values() for text in texts]


class Log(list[str]):
    """A report callback that remembers."""

    __call__ = list.append

    def count_of(self, start: str) -> int:
        return sum(line.startswith(start) for line in self)
