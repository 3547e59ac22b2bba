"""Check the data of a run or a study before it starts."""

from __future__ import annotations

from collections.abc import Callable

from nasgrow.config import DataConfig, Hub
from nasgrow.data.corpus import Corpus, prepare, prepared
from nasgrow.data.documents import SPLITS
from nasgrow.errors import UserError


def check_data(config: DataConfig, context: int, report: Callable[[str], None]) -> Corpus | None:
    """Prepare and return the corpus, but download nothing.

    None for a hub dataset that is not in the cache: the search downloads it.

    Args:
        config: The data settings.
        context: Tokens of a training sequence; every split must be longer.
        report: Called with each line of progress.

    Raises:
        UserError: The text or the tokenizer is invalid, or a split is too short.
    """
    corpus = prepared(config) if isinstance(config.text, Hub) else prepare(config, report=report)
    if corpus is None:
        return None
    for name in SPLITS:
        if len(getattr(corpus, name)) <= context:
            raise UserError(
                f"data: the {name} split has {len(getattr(corpus, name)):,} tokens, and a sequence takes "
                f"{context + 1:,}: give more text, a larger share of it (data.{name}), or a shorter "
                "training.context"
            )
    return corpus


def in_words(corpus: Corpus | None, tokens: float | None = None) -> str:
    """Describe the data in one line.

    Args:
        corpus: The data; None if it was not downloaded yet.
        tokens: The number of tokens that a run reads; None leaves out how often it reads the text.
    """
    if corpus is None:
        return "Data: not downloaded yet; a search does that first."
    sizes = ", ".join(f"{name} {len(getattr(corpus, name)):,}" for name in SPLITS)
    many = sum(corpus.documents.values())
    what = (
        f"{many:,} documents" if corpus.cut_from is None else f"one text cut by position into {many} pieces"
    )
    often = (
        "" if tokens is None else f"; a run reads its training split {tokens / len(corpus.train):.2g} times"
    )
    return f"Data: {what}; tokens: {sizes}{often}."
