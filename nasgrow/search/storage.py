"""The database of a study: where it is, opened with one-line errors, passwords never shown."""

from __future__ import annotations

import copy
import logging
import os
import random
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

import optuna
import sqlalchemy
from filelock import FileLock, Timeout
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.trial import TrialState
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, SQLAlchemyError

from nasgrow.search.config import StudyConfig
from nasgrow.search.database import LONGEST_PAUSE, Away, Busy, Database, said
from nasgrow.strict import redact

DATABASE = "study.db"
URL_VARIABLE = "NASGROW_STORAGE"
FILE_VARIABLE = "NASGROW_STORAGE_FILE"

HEARTBEAT = 3
"""Seconds between two signs of life of a trial."""

GRACE = 20
"""Seconds without one after which a trial is given to another worker."""

RETRIES = 3
"""How often a trial whose worker died is tried again."""

CREATIONS = 5
"""Attempts at making the tables: of several processes that begin at once, one makes them."""

DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
}
"""What people call a database, and what SQLAlchemy does with the driver that we install for it."""

EXTRAS = {"postgresql+psycopg": "postgres", "mysql+pymysql": "mysql"}

REFUSALS = "authentication|does not exist|Access denied|Unknown database"
"""What a server says that is there, and will not let us in however long we wait."""

MADE = "already exists|duplicate key|Duplicate entry|UNIQUE"
"""What SQLite, PostgreSQL and MySQL say to one who makes tables that somebody else makes at that moment."""

SILENCE = 30
"""Seconds after which a server that answers nothing is taken to be gone."""


def storage_url(config: StudyConfig, folder: Path) -> str:
    """The database's URL: from the environment, the study file, or SQLite in the study's folder."""
    given = given_url() or config.storage
    return given or f"sqlite:///{(folder / DATABASE).absolute()}"


def given_url() -> str | None:
    """The URL that the environment gives, itself or in a file that it names.

    Raises:
        ValueError: The file cannot be read, or is empty.
    """
    url, path = os.environ.get(URL_VARIABLE), os.environ.get(FILE_VARIABLE)
    if url or not path:
        return url
    try:
        found = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "is not text").lower()
        raise ValueError(f"{FILE_VARIABLE}: {path}: cannot be read: {reason}") from None
    if not found:
        raise ValueError(f"{FILE_VARIABLE}: {path}: is empty: it must hold a database URL")
    return found


def where(storage: BaseStorage) -> str:
    """Where a storage is, as it may be printed."""
    return redact(storage.url) if isinstance(storage, RDBStorage) else "memory"


def with_driver(url: str) -> str:
    """A URL as SQLAlchemy wants it, with the driver that we install."""
    name, colon, rest = url.partition(":")
    return DRIVERS.get(name, name) + colon + rest


def checked_url(url: str) -> str:
    """A URL as SQLAlchemy wants it.

    Raises:
        ValueError: It is none, or reads otherwise than it was meant; nothing of it is shown.
    """
    driven = with_driver(url)
    try:
        parts = sqlalchemy.make_url(driven)
    except (ArgumentError, ValueError):
        raise ValueError("storage: is not a database URL such as postgresql://host/name") from None
    if driven.partition("://")[2].partition("?")[0].count("@") > 1:
        raise ValueError("storage: has more than one @: write those in a password as %40")
    file = parts.database or ":memory:"
    if parts.get_backend_name() == "sqlite" and (":memory:" in file or parts.query.get("mode") == "memory"):
        raise ValueError(
            f"storage: {redact(url)} names no file, and workers cannot share a database in memory: it must "
            "be like sqlite:////folder/study.db"
        )
    return driven


def engine_options(url: str) -> dict[str, Any]:
    """How to connect: SQLite's writers wait for each other, and no server is waited for without end."""
    if url.startswith("sqlite"):
        return {"connect_args": {"timeout": 60}}
    arguments: dict[str, Any] = {}
    if "psycopg" in url.partition(":")[0]:
        probes = {"keepalives_idle": SILENCE // 2, "keepalives_interval": 5, "keepalives_count": 3}
        arguments = {"connect_timeout": 10, "tcp_user_timeout": 1000 * SILENCE, **probes}
    elif "pymysql" in url.partition(":")[0]:
        arguments = {"connect_timeout": 10, "read_timeout": 2 * SILENCE, "write_timeout": SILENCE}
    # One connection for the worker, one more for a sign of life at the same moment.
    return {"connect_args": arguments, "pool_size": 1, "max_overflow": 1}


def open_storage(url: str, patience: float = 0.0) -> Database:
    """Connect, and create the tables if there are none.

    Args:
        url: The database's.
        patience: Seconds to wait for one that cannot be reached.

    Raises:
        ValueError: It cannot be reached or is damaged.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # A connection that breaks while it is put back is replaced; pool and driver would tell, at length.
    for name in ("sqlalchemy.pool", "psycopg"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    driven = checked_url(url)
    deadline, creations = time.monotonic() + patience, 0
    while True:
        try:
            return _connect(driven)
        except (ImportError, NoSuchModuleError):
            raise no_driver(url) from None
        except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
            cause = error.__cause__ or error
            creations += 1
            away = isinstance(cause, OperationalError) and cause.statement is None
            away = away and not re.search(REFUSALS, str(cause))
            if away and not driven.startswith("sqlite") and time.monotonic() < deadline:
                time.sleep(random.uniform(0.5, 1.0) * LONGEST_PAUSE)
            elif re.search(MADE, str(cause)) and creations < CREATIONS:
                time.sleep(random.uniform(0.1, 0.3))  # somebody else made the tables just now
            else:
                raise ValueError(f"storage: {redact(url)} cannot be used: {said(cause)}") from None


def reach(url: str) -> None:
    """Connect to a database server once; a file is there or can be made.

    Raises:
        ValueError: It cannot be reached.
    """
    driven = checked_url(url)
    if driven.startswith("sqlite"):
        return
    try:
        engine = sqlalchemy.create_engine(driven, **engine_options(driven))
        try:
            engine.connect().close()
        finally:
            engine.dispose()
    except (ImportError, NoSuchModuleError):
        raise no_driver(url) from None
    except SQLAlchemyError as error:
        raise ValueError(f"storage: {redact(url)} cannot be used: {said(error)}") from None


def no_driver(url: str) -> ValueError:
    """What to say where the driver of a database is missing."""
    extra = EXTRAS.get(with_driver(url).partition(":")[0])
    hint = f": pip install 'nasgrow[{extra}]'" if extra else ""
    return ValueError(f"storage: no driver is installed for {redact(url)}{hint}")


def _connect(url: str) -> Database:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        storage = Database(
            url.replace("{", "{{").replace("}", "}}"),  # Optuna takes a URL for a template
            engine_kwargs=engine_options(url),
            heartbeat_interval=HEARTBEAT,
            grace_period=GRACE,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
        )
    _configure(storage.engine)
    return storage


def _configure(engine: sqlalchemy.Engine) -> None:
    """Set up every connection.

    SQLite's readers and writers do not wait for each other, nor each write for the disk: whatever a process
    wrote survives its death; a power cut may take the last moments, but leaves no damage. Servers tell one
    time to all machines, whatever time zones these have: signs of life are compared by it.
    """
    settings = {
        "sqlite": ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL"),
        "postgresql": ("SET TIME ZONE 'UTC'",),
        "mysql": ("SET time_zone = '+00:00'",),
    }.get(engine.dialect.name, ())

    def configure(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        for setting in settings:
            cursor.execute(setting)
        cursor.close()
        if engine.dialect.name != "sqlite":
            connection.commit()

    sqlalchemy.event.listen(engine, "connect", configure)
    engine.dispose()  # connections made before are not configured


class LedgerLock:
    """Held while a ledger is changed in several steps, which become one transaction.

    A database that is a file is shared on one machine: there a lock beside it keeps others out. A server's is
    held in the database, so that it binds machines that see each other nowhere else.

    Args:
        storage: The ledger's.
        folder: The study's; None if only this process knows the storage.
        study_id: The study that stands for the whole ledger.
    """

    def __init__(self, storage: BaseStorage, folder: Path | None, study_id: int) -> None:
        self._storage, self._study_id = storage, study_id
        self._file = nullcontext() if folder is None or served(storage) else FileLock(folder / ".ledger.lock")
        self._held = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._file)
            stack.enter_context(self._transaction(wait=True))
            self._held = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._held.__exit__(kind, error, trace)

    @contextmanager
    def if_free(self) -> Iterator[None]:
        """Hold it, unless somebody else does.

        Raises:
            Busy: Somebody does.
        """
        file = self._file
        try:
            attempt = file.acquire(timeout=0) if isinstance(file, FileLock) else file
        except Timeout:
            raise Busy from None
        with attempt, self._transaction(wait=False):
            yield

    def _transaction(self, *, wait: bool) -> AbstractContextManager[None]:
        if isinstance(self._storage, Database):
            return self._storage.together(self._study_id, wait=wait)
        return nullcontext()


def served(storage: BaseStorage) -> bool:
    """Whether a server keeps the database, for any number of machines."""
    return isinstance(storage, Database) and storage.served


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


def count_out(study: optuna.Study, trial_id: int) -> None:
    """Give a trial that could not be trained back to the queue, as if its worker had died."""
    storage = study._storage
    storage.set_trial_state_values(trial_id, TrialState.FAIL)
    retry = storage.get_heartbeat_stale_trial_callback() if isinstance(storage, BaseHeartbeat) else None
    if retry is not None:
        retry(study, copy.deepcopy(storage.get_trial(trial_id)))


def record_heartbeat(storage: BaseStorage, trial_id: int) -> None:
    """Give a sign of life of a trial, where other processes may miss it."""
    if isinstance(storage, BaseHeartbeat):
        storage.record_heartbeat(trial_id)


def own(storage: BaseStorage, trial_id: int) -> None:
    """Take a trial for this process's own, of which nobody else says anything."""
    if isinstance(storage, Database):
        storage.own(trial_id)


def at_once(storage: BaseStorage, steps: Callable[[], None]) -> None:
    """Do several steps that may be done twice in one transaction."""
    if isinstance(storage, Database):
        storage.once(steps)
    else:
        steps()


@contextmanager
def beating(storage: BaseStorage, trial_id: int) -> Iterator[None]:
    """Give signs of life of a trial while the body runs."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT):
            try:
                record_heartbeat(storage, trial_id)
            except (SQLAlchemyError, StorageInternalError, Away):
                continue  # the database is away for a moment; the next beat may reach it
            except UpdateFinishedTrialError:
                return  # the trial was taken away: the next thing said of it will tell

    with beside(beat, ended):
        yield


@contextmanager
def beside(work: Callable[[], None], ended: threading.Event, patience: float | None = None) -> Iterator[None]:
    """Let a thread work while the body runs.

    Args:
        work: Returns soon after ``ended`` is set.
        ended: Set when the body ends.
        patience: Seconds to wait for it then; without end by default.
    """
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(patience)
