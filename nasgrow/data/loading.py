"""Read the texts of a dataset with the ``datasets`` library, without its progress bars and logs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

from nasgrow.errors import UserError

_TEXT_TYPES = ("string", "large_string", "string_view", "null")


def quiet_datasets() -> Any:
    """Import ``datasets`` and switch off its progress bars, log lines, telemetry and download counts.

    The import is late because it takes more than a second, and a cached corpus does not need it.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")
    import datasets  # type: ignore[import-untyped]
    import huggingface_hub

    hub: Any = huggingface_hub.utils  # its stubs hide what it exports
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    hub.disable_progress_bars()
    hub.logging.set_verbosity(logging.CRITICAL)
    return datasets


def texts(
    load: Callable[[], Any],
    column: str,
    *,
    what: str,
    failed: Callable[[int, Exception], str],
    batch: int = 100,
) -> Iterator[bytes]:
    """Yield the values of one column of a streaming dataset as UTF-8; a missing value is empty.

    Args:
        load: Called to open the dataset.
        column: The column that holds the text.
        what: The name of the dataset in error messages.
        failed: Called with the number of rows read and the library's exception; returns the error message.
        batch: The number of rows to hold in memory at once.

    Raises:
        UserError: The dataset cannot be read, or has no such column, or the column does not hold text.
    """
    read = 0
    try:
        tables = load().with_format("arrow").iter(batch_size=batch)
    except Exception as error:  # the library raises many types
        raise UserError(failed(read, error)) from None
    while True:
        try:
            table = next(tables, None)
        except Exception as error:
            raise UserError(failed(read, error)) from None
        if table is None:
            return
        if column not in table.column_names:
            names = ", ".join(table.column_names)
            raise UserError(f"data.text.column: {what} has no column {column!r}; it has {names}")
        values = table.column(column)
        if str(values.type) not in _TEXT_TYPES:
            raise UserError(f"data.text.column: {column!r} of {what} holds {values.type}, not text")
        for value in values.to_pylist():
            yield (value or "").encode("utf-8", errors="replace")
        read += len(values)


def one_line(error: BaseException) -> str:
    """Return the message of an exception on one line, cut to 300 letters; its type if it has no message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
