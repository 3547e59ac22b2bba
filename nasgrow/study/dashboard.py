"""Serve optuna-dashboard for a study on this machine, with a summary as the study's note."""

from __future__ import annotations

import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from optuna_dashboard import get_note, save_note, wsgi  # type: ignore[import-untyped]
from sqlalchemy.exc import SQLAlchemyError

from nasgrow.errors import UserError
from nasgrow.study.artifacts import artifact_store
from nasgrow.study.notes import study_note
from nasgrow.study.request_filter import guarded
from nasgrow.study.storage import quiet
from nasgrow.study.store import study_name
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.study_folder import read_study
from nasgrow.study.summary import summarise
from nasgrow.study.trials import Kind

REFRESH = 15.0
"""Seconds between two updates of the note."""

CLOSE_SECONDS = 1.0
"""Seconds that closing waits for a running update: a locked database must not block it."""

OWN = "\n\n---\n*nasgrow keeps what is above up to date; what you write below this line stays.*\n"
"""The end of nasgrow's part of a study's note; the user's part follows."""

_KINDS: tuple[Kind, Kind] = ("search", "baseline")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without looking up the host's full name, which can take seconds."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: a line for each request would bury other messages."""


def make_dashboard(storage: RDBStorage, folder: Path, host: str, port: int) -> WSGIServer:
    """Create the dashboard's server; it is bound to the address but does not serve yet.

    Raises:
        UserError: The address cannot be used.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        application = guarded(wsgi(storage, artifact_store(folder)), host)
    try:
        return make_server(host, port, application, _Server6 if ":" in host else _Server, _Quiet)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}, port {port}: {(error.strerror or str(error)).lower()}"
        ) from None


@contextmanager
def noting(study: ResolvedStudy, folder: Path, storage: RDBStorage) -> Iterator[None]:
    """Keep the notes of the study and of its baselines up to date while the body runs.

    A thread writes them every :data:`REFRESH` seconds. If an update fails, the thread tries again
    next time.
    """
    ended = threading.Event()

    def keep() -> None:
        last = ""
        while True:
            # The database may be locked or unreachable for a moment, or the study is being deleted.
            with suppress(SQLAlchemyError, StorageInternalError, UserError, KeyError):
                last = write_notes(study, folder, storage, last)
            if ended.wait(REFRESH):
                return

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(CLOSE_SECONDS)


def write_notes(study: ResolvedStudy, folder: Path, storage: RDBStorage, last: str) -> str:
    """Write the summary into the notes of the search's and the baselines' Optuna studies.

    What the user wrote below it stays.

    Args:
        study: The study.
        folder: Its folder.
        storage: Its database.
        last: The text that the call before returned; empty at first. If the new text equals it,
            nothing is written.

    Returns:
        The text of the summary.
    """
    known = read_study(folder)
    summary = summarise(study, known.trials, ended=known.searched, **known.planned)
    names = [study_name(study, kind) for kind in _KINDS]
    text = study_note(summary, *(storage.get_study_id_from_name(name) for name in names))
    if text != last:
        with quiet():
            for name in names:
                shown = optuna.load_study(study_name=name, storage=storage)
                _, _, own = get_note(shown).partition(OWN)
                save_note(shown, text + OWN + own)
    return text
