"""What a file may say, as strict, documented models.

Every field has a type, a default where one makes sense, and a description. Unknown fields are refused, and
values are not converted: ``"3"`` is not 3.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Base of all models: no unknown fields, no conversions, no changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class PythonStdlib(Strict):
    """The sources of the running interpreter's own standard library: real text on every machine."""

    source: Literal["python-stdlib"] = "python-stdlib"


class Files(Strict):
    """Local files: plain text (one document each), JSON Lines or Parquet (one document a row)."""

    source: Literal["files"]
    paths: Annotated[list[str], Field(min_length=1)]
    """Glob patterns, relative to the working directory; ``**`` descends into folders."""
    column: str = "text"
    """The column that holds the text, for JSON Lines and Parquet."""


class Hub(Strict):
    """A dataset of the Hugging Face hub."""

    source: Literal["hub"]
    name: str
    """The dataset's name, such as ``roneneldan/TinyStories``."""
    configuration: str | None = None
    """The dataset's configuration, if it has several."""
    split: str = "train"
    """The dataset's split to read; ours are cut from it."""
    column: str = "text"
    """The column that holds the text."""
    revision: str | None = None
    """A commit or tag of the dataset; the newest if left out."""
    max_bytes: Annotated[int, Field(gt=0)] = 1_000_000_000
    """Read no more than this many bytes of text; the dataset is streamed until then."""


Source = Annotated[PythonStdlib | Files | Hub, Field(discriminator="source")]


class ByteTokens(Strict):
    """One token for each byte of UTF-8; byte 0 ends a document."""

    kind: Literal["bytes"] = "bytes"


class BpeTokens(Strict):
    """Byte-pair encoding, trained on the training split."""

    kind: Literal["bpe"]
    vocab: Annotated[int, Field(ge=257, le=1_000_000)]
    """The number of tokens, the 256 bytes and the end of a document among them."""


class SavedTokens(Strict):
    """A tokenizer saved by the ``tokenizers`` library."""

    kind: Literal["file"]
    path: str
    """Its JSON file."""
    end: str = "<|endoftext|>"
    """The token that ends a document."""


Tokens = Annotated[ByteTokens | BpeTokens | SavedTokens, Field(discriminator="kind")]


class DataConfig(Strict):
    """Which text, in which tokens, and how much of it is kept for evaluation."""

    text: Source = PythonStdlib()
    tokens: Tokens = ByteTokens()
    validation: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """The share of the text that the search looks at."""
    test: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """The share of the text that only the final verdict looks at."""
