"""The database of a study: where it is, opened with one-line errors, passwords never shown."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages._heartbeat import BaseHeartbeat
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from nasgrow.search.config import StudyConfig
from nasgrow.strict import redact

DATABASE = "study.db"
URL_VARIABLE = "NASGROW_STORAGE"

HEARTBEAT = 3
"""Seconds between two signs of life of a trial."""

GRACE = 20
"""Seconds without one after which a trial is given to another worker."""

RETRIES = 3
"""How often a trial whose worker died is tried again."""


def storage_url(config: StudyConfig, folder: Path) -> str:
    """The database's URL: from the environment, the study file, or SQLite in the study's folder."""
    given = os.environ.get(URL_VARIABLE) or config.storage
    return given or f"sqlite:///{(folder / DATABASE).absolute()}"


def shown(url: str) -> str:
    """A URL as it may be printed and recorded."""
    return redact(url)


def where(storage: BaseStorage) -> str:
    """Where a storage is, as it may be printed."""
    return shown(storage.url) if isinstance(storage, RDBStorage) else "memory"


def open_storage(url: str) -> RDBStorage:
    """Connect, and create the tables if there are none.

    Raises:
        ValueError: It cannot be reached or is damaged.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # SQLite's writers wait for each other; any other pool checks a connection before it uses it.
    sqlite = url.startswith("sqlite")
    options = {"connect_args": {"timeout": 60}} if sqlite else {"pool_pre_ping": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            storage = RDBStorage(
                url,
                engine_kwargs=options,
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
            )
            if sqlite:
                _write_ahead(storage.engine)
            return storage
        except (ImportError, NoSuchModuleError):
            raise ValueError(f"storage: no driver is installed for {shown(url)}") from None
        except ArgumentError:
            raise ValueError("storage: is not a database URL such as postgresql://user@host/name") from None
        except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
            cause = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise ValueError(f"storage: {shown(url)} cannot be used: {redact(cause)}") from None


def _write_ahead(engine: sqlalchemy.Engine) -> None:
    """Let SQLite's readers and writers not wait for each other, nor each write for the disk.

    Whatever a process wrote survives its death; a power cut may take the last moments, but leaves no damage.
    """

    def configure(connection: Any, _: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    sqlalchemy.event.listen(engine, "connect", configure)
    engine.dispose()  # connections made before are not configured


@contextmanager
def quiet() -> Iterator[None]:
    """Let Optuna say nothing: searches that are only played would tell of thousands of trials."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            yield
        finally:
            optuna.logging.set_verbosity(before)


def release_stale(study: optuna.Study) -> None:
    """Give the trials of workers that died back to the queue."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        optuna.storages.fail_stale_trials(study)


def record_heartbeat(storage: BaseStorage, trial_id: int) -> None:
    """Give a sign of life of a trial, where other processes may miss it."""
    if isinstance(storage, BaseHeartbeat):
        storage.record_heartbeat(trial_id)


@contextmanager
def beating(storage: BaseStorage, trial_id: int) -> Iterator[None]:
    """Give signs of life of a trial while the body runs."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT):
            try:
                record_heartbeat(storage, trial_id)
            except (SQLAlchemyError, StorageInternalError):
                continue  # the database is away for a moment; the next beat may reach it

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
