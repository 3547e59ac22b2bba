"""Open the database of a study, with one-line errors and retries, and never show passwords."""

from __future__ import annotations

import logging
import os
import random
import re
import secrets
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)

from nasgrow.errors import UserError
from nasgrow.redact import redact
from nasgrow.study.config import StudyConfig

DATABASE = "study.db"
URL_VARIABLE = "NASGROW_STORAGE"
FILE_VARIABLE = "NASGROW_STORAGE_FILE"

DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}
"""SQLAlchemy's name for a database with the driver that nasgrow installs, by the usual URL scheme."""

SERVERS = "sqlite", "postgresql"
"""The databases that studies may use."""

REFUSALS = "authentication|does not exist"
"""A pattern of server messages that refuse the user, so that no retry would help."""

SILENCE = 30
"""Seconds after which a connection to a server that does not answer counts as lost."""

RETRY_SECONDS = 600.0
"""Seconds for which a step is retried after the connection is lost."""

LONGEST_PAUSE = 5.0
"""The most seconds between two attempts."""

Got = TypeVar("Got")


def storage_url(config: StudyConfig, folder: Path) -> str:
    """Return the database's URL: from the environment, the study file, or SQLite in ``folder``.

    Raises:
        UserError: As for :func:`given_url`.
    """
    given = given_url() or config.storage
    return given or f"sqlite:///{(folder / DATABASE).absolute()}"


def given_url() -> str | None:
    """Return the database URL from the environment: a variable with the URL, or with the path of its file.

    The variable with the URL wins. None or an empty text if neither is set.

    Raises:
        UserError: The file cannot be read, or is empty.
    """
    url, path = os.environ.get(URL_VARIABLE), os.environ.get(FILE_VARIABLE)
    if url or not path:
        return url
    try:
        found = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "is not text").lower()
        raise UserError(f"{FILE_VARIABLE}: {path}: cannot be read: {reason}") from None
    if not found:
        raise UserError(f"{FILE_VARIABLE}: {path}: is empty: it must hold a database URL")
    return found


def checked_url(url: str) -> str:
    """Return a URL in SQLAlchemy's form, with the driver that nasgrow installs.

    Raises:
        UserError: It is not a database URL, is ambiguous, names a database in memory, or is of a
            database that is not supported. The message shows no password.
    """
    name, colon, rest = url.partition(":")
    driven = DRIVERS.get(name, name) + colon + rest
    try:
        parts = sqlalchemy.make_url(driven)
    except (ArgumentError, ValueError):
        raise UserError("storage: is not a database URL such as postgresql://host/name") from None
    if driven.partition("://")[2].partition("?")[0].count("@") > 1:
        raise UserError("storage: has more than one @: write those in a password as %40")
    kind = parts.get_backend_name()
    if kind not in SERVERS:
        raise UserError(f"storage: {kind!r} is not supported: it must be one of {', '.join(SERVERS)}")
    file = parts.database or ":memory:"
    if kind == "sqlite" and (":memory:" in file or parts.query.get("mode") == "memory"):
        raise UserError(
            f"storage: {redact(url)} names no file, and a study must outlive its process: it must be like "
            "sqlite:////folder/study.db"
        )
    return driven


def is_server(url: str) -> bool:
    """Return whether the database is on a server, which several machines can reach."""
    return not url.startswith("sqlite")


def engine_options(url: str) -> dict[str, Any]:
    """Return SQLAlchemy's connection options.

    Writers of an SQLite file wait up to a minute for each other. A server must answer within timeouts.
    """
    if not is_server(url):
        return {"connect_args": {"timeout": 60}}
    probes = {"keepalives_idle": SILENCE // 2, "keepalives_interval": 5, "keepalives_count": 3}
    return {
        "connect_args": {"connect_timeout": 10, "tcp_user_timeout": 1000 * SILENCE, **probes},
        "pool_pre_ping": True,
    }


def open_storage(url: str) -> RDBStorage:
    """Connect to a database, and create Optuna's tables if there are none.

    For the rest of the process Optuna logs errors only.

    Raises:
        UserError: The URL is invalid, its driver is not installed, or the database cannot be
            reached or is damaged.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # The pool replaces broken connections. Its and the driver's long log messages about them are not needed.
    for name in ("sqlalchemy.pool", "psycopg"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    driven = checked_url(url)
    with _in_use(url):
        # Optuna treats the URL as a format string.
        template = driven.replace("{", "{{").replace("}", "}}")
        storage = RDBStorage(template, engine_kwargs=engine_options(driven))
        if not is_server(driven):  # WAL takes a third of the time per write, and does not block readers
            with storage.engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    return storage


def reach(url: str) -> None:
    """Check that a database server can be reached; for an SQLite file, check the URL only.

    Raises:
        UserError: The URL is invalid, its driver is not installed, or the server cannot be reached.
    """
    driven = checked_url(url)
    if is_server(driven):
        with _in_use(url):
            engine = sqlalchemy.create_engine(driven, **engine_options(driven))
            try:
                engine.connect().close()
            finally:
                engine.dispose()


@contextmanager
def _in_use(url: str) -> Iterator[None]:
    """Raise ``UserError`` if the database at a URL fails in the body, or if its driver is not installed."""
    try:
        yield
    except (ImportError, NoSuchModuleError):
        raise UserError(
            f"storage: no driver is installed for {redact(url)}: pip install 'nasgrow[postgres]'"
        ) from None
    except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
        raise UserError(f"storage: {redact(url)} cannot be used: {summary_of(error)}") from None


def summary_of(error: BaseException) -> str:
    """Return a database's error in one line, without the SQL statement and without passwords."""
    cause = _database_error(error)
    original = cause.orig if isinstance(cause, DBAPIError) and cause.orig is not None else cause
    lines = [line.strip() for line in str(original).splitlines() if line.strip()]
    return redact(lines[0] if lines else type(original).__name__)


def is_unusable(error: BaseException) -> bool:
    """Return whether the database failed or refused the user; other errors are bugs in a statement."""
    cause = _database_error(error)
    wrong = IntegrityError, DataError, ProgrammingError, NotSupportedError
    return isinstance(cause, DBAPIError) and (
        not isinstance(cause, wrong) or "permission denied" in str(cause.orig)
    )


def retried(step: Callable[[], Got], warn: Callable[[str], None]) -> Got:
    """Run a database step and return its result; retry it while the connection is lost.

    A locked SQLite file counts as a lost connection. The step must be idempotent, because it may
    have succeeded before the connection was lost.

    Args:
        step: The step.
        warn: Called with one warning, before the first retry.

    Raises:
        UserError: The connection stayed lost for :data:`RETRY_SECONDS` seconds, the server refuses,
            or a retry would not help, as with a full disk.
    """
    deadline, pause = time.monotonic() + RETRY_SECONDS, 0.1
    while True:
        try:
            return step()
        except (OperationalError, StorageInternalError) as error:
            if not _is_lost(_database_error(error)) or time.monotonic() > deadline:
                raise UserError(f"storage: cannot be used: {summary_of(error)}") from None
            if pause == 0.1:
                warn(f"storage: {summary_of(error)}: retrying")
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)


def check_storage(url: str) -> Iterator[str]:
    """Test a database with a small study, which is deleted again; yield a line for each step that works.

    Optuna's tables stay.

    Raises:
        UserError: Something does not work.
    """
    storage, name = open_storage(url), f"nasgrow-check-{secrets.token_hex(4)}"
    yield f"{redact(url)} can be reached, and has Optuna's tables"
    began = time.perf_counter()
    with _in_use(url), quiet():
        study = optuna.create_study(storage=storage, study_name=name)
        try:
            trial = study.ask()
            trial.report(1.0, 1)
            trial.set_user_attr("check", {"nested": [1, None, "text"]})
            study.tell(trial, 1.0)
            if study.best_value != 1.0 or study.best_trial.user_attrs["check"]["nested"][1] is not None:
                raise UserError(f"storage: {redact(url)} does not return what was written")
        finally:
            optuna.delete_study(study_name=name, storage=storage)
    yield f"a study with one trial was written, read and deleted in {time.perf_counter() - began:.2f} s"


def _database_error(error: BaseException) -> BaseException:
    """Return SQLAlchemy's error, which Optuna may have wrapped in its own; its cause is the driver's."""
    return error if isinstance(error, DBAPIError) else error.__cause__ or error


def _is_lost(cause: BaseException) -> bool:
    """Return whether an error is temporary: a lost connection, or a file that another process has locked."""
    if not isinstance(cause, OperationalError):
        return False
    if isinstance(cause.orig, sqlite3.OperationalError):
        return "locked" in str(cause.orig)  # others, such as a full disk, do not pass by themselves
    return not re.search(REFUSALS, str(cause))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's log and its warnings about experimental features while the body runs."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            yield
        finally:
            optuna.logging.set_verbosity(before)
