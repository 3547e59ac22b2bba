"""Stream the text of a Hugging Face hub dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nasgrow.config import Hub
from nasgrow.data.loading import one_line, quiet_datasets, texts
from nasgrow.errors import UserError

_ALTERNATIVES = "use `source: files` with a local copy, or `source: python-stdlib`"
_TIMEOUT = 10  # seconds to wait for the hub to answer at all


class HubUnreachableError(UserError):
    """The hub does not answer; the caller may use cached data instead."""


@dataclass(frozen=True)
class HubText:
    """The first ``max_bytes`` of a dataset at one commit."""

    config: Hub
    commit: str

    @property
    def description(self) -> Mapping[str, object]:
        """The settings of the text, with the commit in place of the revision."""
        return {**wanted(self.config), "commit": self.commit}

    def documents(self, scratch: Path) -> Iterator[bytes]:
        """Yield the text of whole rows in the order of the dataset, up to ``max_bytes`` in all.

        Raises:
            HubUnreachableError: The hub does not answer.
            UserError: The dataset cannot be read, or the column holds no text.
        """
        _resolve(self.config)  # fails at once without a network, while loading would retry for long
        left = self.config.max_bytes
        for text in self._rows(scratch):
            left -= len(text)
            if left < 0:
                return
            yield text

    def _rows(self, scratch: Path) -> Iterator[bytes]:
        config = self.config

        def load() -> Any:
            return quiet_datasets().load_dataset(
                config.name,
                config.configuration,
                split=config.split,
                revision=self.commit,
                streaming=True,
                cache_dir=str(scratch),
            )

        def failed(read: int, error: Exception) -> str:
            when = f"after {read} rows" if read else "with its configuration, split and revision"
            return f"data.text: cannot read hub dataset {config.name!r} {when}: {one_line(error)}"

        return texts(load, config.column, what=f"hub dataset {config.name!r}", failed=failed)


def wanted(config: Hub) -> dict[str, object]:
    """Return the settings of a hub text that decide what is read, without the revision."""
    return config.model_dump(mode="json", exclude={"revision"})


def open_hub(config: Hub) -> HubText:
    """Resolve the revision to a commit; a revision that is a commit already needs no network.

    Raises:
        HubUnreachableError: The hub does not answer.
        UserError: The dataset or revision does not exist, or is private or gated.
    """
    revision = config.revision or ""
    commit = revision if re.fullmatch("[0-9a-f]{40}", revision) else _resolve(config)
    return HubText(config, commit)


def _resolve(config: Hub) -> str:
    """Ask the hub for the commit of the revision; raises as :func:`open_hub`."""
    quiet_datasets()  # sets up the hub's library too, before its first import
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = f"data.text.name: hub dataset {config.name!r}"
    try:
        commit = HfApi().dataset_info(config.name, revision=config.revision, timeout=_TIMEOUT).sha
    except HFValidationError as error:
        raise UserError(
            f"data.text.name: {config.name!r} is not a dataset's name: {one_line(error)}"
        ) from None
    except RevisionNotFoundError:
        raise UserError(
            f"data.text.revision: hub dataset {config.name!r} has no {config.revision!r}"
        ) from None
    except GatedRepoError:
        raise UserError(
            f"{name} asks you to accept its terms: do so on its page and set HF_TOKEN, or {_ALTERNATIVES}"
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"{name} does not exist, or is private and needs HF_TOKEN; or {_ALTERNATIVES}"
        ) from None
    except Exception as error:  # the library passes on the exceptions of its HTTP client
        raise HubUnreachableError(f"{name} cannot be reached ({one_line(error)}); {_ALTERNATIVES}") from None
    assert commit is not None, config.name
    return commit
