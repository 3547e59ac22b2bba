"""Who may talk to the dashboard: pages that it served itself, and programs that are no browsers.

The dashboard asks for no password, and every page that a user visits may send requests to loopback. A
page of another origin gets there in two ways: by a request to another origin, which carries ``Origin`` or
``Sec-Fetch-Site``; or by a name of its own that it lets point to this machine (DNS rebinding), which then
stands in ``Host``. Such requests are refused.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable
from functools import cache
from ipaddress import ip_address
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LOOPBACK = "localhost", "127.0.0.1", "::1"
"""The names of loopback, at which ssh forwards a dashboard of another machine too."""

EVERYWHERE = "0.0.0.0", "::"
"""What is listened on to be reached at every address of this machine."""

_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]*)?")

_NO_FRAME = [("X-Frame-Options", "SAMEORIGIN"), ("Content-Security-Policy", "frame-ancestors 'self'")]
"""A foreign page that shows the dashboard in a frame could have it clicked unseen."""


def guarded(application: WSGIApplication, host: str) -> WSGIApplication:
    """An application that answers no page of another origin, and to no name but this machine's.

    Args:
        application: What is guarded.
        host: What is listened on, as the user gave it.
    """

    def guard(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        refusal = _refusal(environ, host)
        if refusal is not None:
            body = f"nasgrow dashboard: {refusal}\n".encode()
            headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
            start_response("403 Forbidden", [*headers, ("X-Content-Type-Options", "nosniff")])
            return [body]

        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Callable[[bytes], object]:
            return start_response(status, [*headers, *_NO_FRAME], *error)

        return application(environ, start)

    return guard


def _refusal(environ: WSGIEnvironment, host: str) -> str | None:
    """Why a request is refused; None if it is not."""
    given = environ.get("HTTP_HOST", "")
    if not _is_ours(given, host):
        return f"it is not known by the name {_short(given)}; start it with --host NAME for another name"
    origin = environ.get("HTTP_ORIGIN")
    if origin is not None and origin.lower().partition("://")[2] != given.lower():
        return f"a page of {_short(origin)} may not use it"
    if environ.get("HTTP_SEC_FETCH_SITE", "none") not in ("same-origin", "none") and not _is_a_link(environ):
        return "a page of another origin may not use it"
    return None


def _is_ours(given: str, host: str) -> bool:
    """Whether a ``Host`` header names what is listened on.

    Who listens everywhere is known by every literal address, which no page can let point elsewhere, and by
    the names of this machine.
    """
    found = _HOST.fullmatch(given.lower())
    if found is None:
        return False
    name = _canonical(found["six"] or found["name"])
    if name in {*LOOPBACK, _canonical(host)}:
        return True
    return host in EVERYWHERE and (_is_address(name) or name in _names_of_this_machine())


def _is_a_link(environ: WSGIEnvironment) -> bool:
    """Whether a user followed a link to the dashboard: the page that has it sees nothing of the answer."""
    said = environ.get("HTTP_SEC_FETCH_MODE"), environ.get("HTTP_SEC_FETCH_DEST"), environ["REQUEST_METHOD"]
    return said == ("navigate", "document", "GET")


def _canonical(name: str) -> str:
    """A name or address in the one form that is compared."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


@cache
def _names_of_this_machine() -> frozenset[str]:
    """Its name and its full name, which is looked up only when a request uses one: that may take seconds."""
    return frozenset(_canonical(name) for name in (socket.gethostname(), socket.getfqdn()))


def _short(text: str) -> str:
    """What a request says, as it may be quoted in one line."""
    return ascii(text if len(text) <= 80 else f"{text[:80]}...")
