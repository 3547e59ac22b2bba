"""The life of a study: begun once, taken up again by the same command, refused if its file changed."""

from __future__ import annotations

import shutil
from pathlib import Path

from filelock import FileLock

from nasgrow.search.config import STUDY, dump_study
from nasgrow.search.ledger import Ledger
from nasgrow.search.storage import open_storage, storage_url
from nasgrow.search.study import Study
from nasgrow.training.files import write_text


def begin(study: Study, folder: Path, fingerprint: str) -> Ledger:
    """Open a study's folder and ledger, creating them if they are new.

    Args:
        study: The study.
        folder: Its folder.
        fingerprint: The data's.

    Raises:
        ValueError: The folder or storage cannot be used, or holds a study of this name that differs; nothing
            was created then.
    """
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".study.lock"):
            # Opened under the lock too: processes that create the tables of one database at once fail.
            storage = open_storage(storage_url(study.config, folder))
            ledger = Ledger.create(study, folder, storage, fingerprint)
            write_text(folder / STUDY, dump_study(study.config))
            return ledger
    except OSError as error:
        raise ValueError(f"{folder}: cannot be used: {(error.strerror or str(error)).lower()}") from None
    finally:
        if new and not (folder / STUDY).exists():
            shutil.rmtree(folder, ignore_errors=True)


def reopen(study: Study, folder: Path) -> Ledger:
    """The ledger of a study that was begun before."""
    if not (folder / STUDY).exists():
        raise ValueError(f"{folder}: no such study yet; start it with nasgrow search")
    return Ledger(study, folder, open_storage(storage_url(study.config, folder)))
