"""optuna-dashboard on a study: served on this machine, with the summary as the study's note."""

from __future__ import annotations

import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna_dashboard import get_note, save_note, wsgi  # type: ignore[import-untyped]
from sqlalchemy.exc import SQLAlchemyError

from nasgrow.search.artifacts import artifact_store
from nasgrow.search.database import Away
from nasgrow.search.ledger import Kind, Ledger
from nasgrow.search.notes import study_note
from nasgrow.search.storage import beside
from nasgrow.search.summary import summarise

REFRESH = 15.0
"""Seconds between two updates of the note."""

PATIENCE = 1.0
"""Seconds that closing waits for an update under way: a database that is locked must not hold it up."""

OWN = "\n\n---\n*nasgrow keeps what is above up to date; what you write below this line stays.*\n"
"""Ends our part of a study's note."""

_KINDS: tuple[Kind, Kind] = ("search", "baseline")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind, without the look-up of the host's full name that takes seconds where names are slow."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """A line for each request would bury what matters."""


def make_dashboard(ledger: Ledger, folder: Path, host: str, port: int) -> WSGIServer:
    """A server that is bound but does not serve yet.

    Raises:
        ValueError: The address cannot be used.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        application = wsgi(ledger.storage, artifact_store(folder))
    try:
        return make_server(host, port, application, _Server6 if ":" in host else _Server, _Quiet)
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host}, port {port}: {(error.strerror or str(error)).lower()}"
        ) from None


@contextmanager
def noting(ledger: Ledger) -> Iterator[None]:
    """Keep the notes of the study and of its baselines up to date while the body runs."""
    ended = threading.Event()

    def keep() -> None:
        last = ""
        while True:
            try:
                _name_objectives(ledger)
                last = write_notes(ledger, last)
            except (SQLAlchemyError, StorageInternalError, Away):
                pass  # the database is locked or away for a moment; the next update may reach it
            if ended.wait(REFRESH):
                return

    with beside(keep, ended, PATIENCE):
        yield


def write_notes(ledger: Ledger, last: str) -> str:
    """Write the summary into the notes of both studies unless it is still ``last``; return it."""
    studies = {kind: ledger.optuna_study(kind) for kind in _KINDS}
    text = study_note(summarise(ledger), *(studies[kind]._study_id for kind in _KINDS))
    if text != last:
        for study in studies.values():
            _, _, own = get_note(study).partition(OWN)
            save_note(study, text + OWN + own)
    return text


def _name_objectives(ledger: Ledger) -> None:
    """Let axes say what they show, in place of a number."""
    for kind in _KINDS:
        study = ledger.optuna_study(kind)
        if study.metric_names is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                study.set_metric_names(list(ledger.study.config.objectives[: len(study.directions)]))
