"""Reading the data that a run or a study would use, before it is started."""

from __future__ import annotations

from collections.abc import Callable

from nasgrow.config import DataConfig, Hub
from nasgrow.data.corpus import Corpus, prepare, prepared
from nasgrow.data.documents import SPLITS
from nasgrow.errors import UserError


def check_data(config: DataConfig, context: int, report: Callable[[str], None]) -> Corpus | None:
    """The corpus of some data; None if it would have to be downloaded, which is left to the search.

    Args:
        config: Which data.
        context: Tokens of a sequence: every split must hold one.
        report: Called with lines about what takes long.

    Raises:
        UserError: The text or the tokenizer is not as it must be, or a split is too short.
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
    """What the data is, in one line.

    Args:
        corpus: The data; None if it was not downloaded yet.
        tokens: How many a run reads.
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
