"""The life of a study: begun once, taken up again by the same command, refused if its file changed."""

from __future__ import annotations

import secrets
import shutil
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path

import optuna
from filelock import FileLock

from nasgrow.search.baselines import PEAK
from nasgrow.search.config import STUDY, dump_study
from nasgrow.search.folders import check_folder
from nasgrow.search.ledger import Ledger
from nasgrow.search.storage import DATABASE, open_storage, quiet, reach, storage_url
from nasgrow.search.study import Study
from nasgrow.search.trials import TRIALS
from nasgrow.strict import with_prefix
from nasgrow.training.files import write_text
from nasgrow.training.run import Run

PLACE = "place"
"""The file that names a study's folder, and the attribute of the study that names the file's content."""

TRIED = 5
"""Points that are drawn of a space that nobody can check otherwise."""


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
    check(study, folder)
    url = storage_url(study.config, folder)
    inside = url.startswith("sqlite") and str(folder.absolute()) in url
    new, above = not folder.exists(), folder.parent.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".study.lock"):
            # Opened under the lock too: processes that create the tables of one database at once fail.
            storage = open_storage(url)
            ledger = Ledger.create(study, folder, storage, fingerprint)
            if not inside:
                _claim_place(ledger, folder)
            write_text(folder / STUDY, dump_study(study.config))
            return ledger
    except OSError as error:
        raise ValueError(f"{folder}: cannot be used: {(error.strerror or str(error)).lower()}") from None
    finally:
        if new and not (folder / STUDY).exists():
            shutil.rmtree(folder, ignore_errors=True)
            if not above:
                with suppress(OSError):  # somebody else may have put something there
                    folder.parent.rmdir()


def check(study: Study, folder: Path) -> None:
    """Look at what a study needs besides its data, which may take long to prepare; nothing is created.

    Raises:
        ValueError: The folder is another's or has lost its database, a user's function is wrong, or a
            database server cannot be reached.
    """
    check_folder(folder, STUDY, "give the study another name", ["*"])
    with_prefix(f"{study.config.name}: space", partial(_try_points, study))
    url = storage_url(study.config, folder)
    file = folder / DATABASE
    if url.endswith(str(file.absolute())) and not file.exists() and any((folder / TRIALS).glob("*.json")):
        raise ValueError(
            f"{file}: is gone, and records of its trials are still there: put it back, or give the study "
            "another name"
        )
    reach(url)


def reopen(study: Study, folder: Path, patience: float = 0.0) -> Ledger:
    """The ledger of a study that was begun before.

    Args:
        study: The study.
        folder: Its folder.
        patience: Seconds to wait for a database that cannot be reached.
    """
    if not (folder / STUDY).exists():
        raise ValueError(f"{folder}: no such study yet; start it with nasgrow search")
    storage = open_storage(storage_url(study.config, folder), patience)
    ledger = Ledger(study, folder, storage)
    _check_place(ledger, folder)
    return ledger


def _try_points(study: Study) -> None:
    """Draw a few points where only a user's function knows what they are, so that it fails early if it does.

    Raises:
        ValueError: It does.
    """
    if study.space.declared:
        return
    with quiet():
        trials = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        for _ in range(TRIED):
            point = study.space.sample(trials.ask())
            config = study.run(point.schedule, point.training, study.config.seeds[0])
            Run.resolve(config, vocab=study.final.vocab, fingerprint="", schedule=point.schedule)
            if PEAK in point.training and study.config.baselines.learning_rates is None:
                raise ValueError(
                    f"python: it returns {PEAK}, and nobody knows which ones it may return: "
                    "baselines.learning_rates must list those that fixed sizes are to be tuned by"
                )


def _claim_place(ledger: Ledger, folder: Path) -> None:
    """Hold a study whose database is elsewhere to one folder, which may be seen under several paths."""
    if not (folder / PLACE).exists():
        write_text(folder / PLACE, f"{secrets.token_hex(8)}\n")
    here = {"id": _place(folder), "at": f"{socket.gethostname()}:{folder.absolute()}"}
    ledger.remember(PLACE, here)
    _check_place(ledger, folder)


def _check_place(ledger: Ledger, folder: Path) -> None:
    known = ledger.recall(PLACE)
    if known is not None and known["id"] != _place(folder):
        raise ValueError(
            f"{folder}: the study is kept in {known['at']}: machines that share a study share its folder, "
            "with its runs and records; if it was removed, give the study another name"
        )


def _place(folder: Path) -> str | None:
    try:
        return (folder / PLACE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
