"""optuna-dashboard on a study: served on this machine, with the summary as the study's note."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from optuna.exceptions import ExperimentalWarning

from nasgrow.search.artifacts import artifact_store
from nasgrow.search.ledger import Ledger
from nasgrow.search.summary import Summary, answer, summarise

REFRESH = 15.0
"""Seconds between two updates of the note."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """A line for each request would bury what matters."""


def make_dashboard(ledger: Ledger, folder: Path, host: str, port: int) -> WSGIServer:
    """A server that is bound but does not serve yet.

    Raises:
        ValueError: The address cannot be used.
    """
    from optuna_dashboard import wsgi  # type: ignore[import-untyped]  # it takes seconds

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        application = wsgi(ledger.storage, artifact_store(folder))
    try:
        return make_server(host, port, application, _Server, _Quiet)
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}"
        ) from None


@contextmanager
def noting(ledger: Ledger) -> Iterator[None]:
    """Keep the study's note up to date while the body runs."""
    from optuna_dashboard import save_note

    ended = threading.Event()
    last = ""

    def update() -> None:
        nonlocal last
        text = note(summarise(ledger))
        if text != last:
            save_note(ledger.optuna_study("search"), text)
            last = text

    def keep() -> None:
        while not ended.wait(REFRESH):
            update()

    update()
    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def note(summary: Summary) -> str:
    """A study's summary in Markdown."""
    planned = "" if summary.planned is None else f" of {summary.planned}"
    lines = [
        f"# {summary.name}",
        "",
        f"{summary.ended}{planned} trials ({summary.pruned} pruned, {summary.diverged} diverged), "
        f"{summary.charged:.3g} FLOPs charged, {summary.executed:.3g} executed.",
        "",
        *(f"{line.strip()}  " for line in answer(summary)),
        "",
        "| fixed size | loss | learning rate | tried |",
        "|---|---|---|---|",
    ]
    for baseline in summary.baselines:
        loss = "" if baseline.loss is None else f"{baseline.loss:.4f}"
        rate = "" if baseline.rate is None else f"{baseline.rate:.3g}"
        lines.append(f"| {baseline.name} | {loss} | {rate} | {baseline.tried} of {baseline.planned} |")
    lines += ["", "Baselines are a study of their own, so that no view mixes them with the search's trials."]
    return "\n".join(lines)
