"""Read text, tokenise it once into memory-mapped files, and cut batches out of them; no torch.

:func:`prepare` turns a :class:`~nasgrow.config.DataConfig` into a :class:`Corpus`; :func:`batch` and
:func:`evaluation_windows` cut windows out of its splits.
"""

from nasgrow.data.batches import batch, evaluation_windows
from nasgrow.data.check import check_data, in_words
from nasgrow.data.corpus import Corpus, prepare, prepared
from nasgrow.data.sources import check_text
from nasgrow.data.tokenizers import Tokenizer, load_tokenizer, vocabulary

__all__ = [
    "Corpus",
    "Tokenizer",
    "batch",
    "check_data",
    "check_text",
    "evaluation_windows",
    "in_words",
    "load_tokenizer",
    "prepare",
    "prepared",
    "vocabulary",
]
