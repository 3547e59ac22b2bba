"""Refuse requests to the dashboard from web pages of other origins.

The dashboard has no password, and every page that a user visits may send requests to loopback. A page of
another origin can reach the dashboard in two ways. A cross-origin request carries ``Origin`` or
``Sec-Fetch-Site``. With DNS rebinding the page lets its own host name point to this machine, and that name is
in ``Host``. Both are refused. Pages that the dashboard served, and programs that are no browsers, may use it.
A page of another origin may link to it.
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
"""The names of loopback, also used when ssh forwards the dashboard of another machine."""

EVERYWHERE = "0.0.0.0", "::"
"""The addresses that listen on every address of this machine."""

_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]*)?")

_NO_FRAME = [("X-Frame-Options", "SAMEORIGIN"), ("Content-Security-Policy", "frame-ancestors 'self'")]
"""Headers that forbid frames: a foreign page could show the dashboard in an invisible frame, and have the
user click in it."""


def guarded(application: WSGIApplication, host: str) -> WSGIApplication:
    """Return an application that refuses pages of other origins, and unknown names in ``Host``.

    A refused request gets status 403. Responses to the others get headers that forbid foreign
    frames.

    Args:
        application: The application to guard.
        host: The address that the server listens on, as the user gave it. Only this name and those
            of loopback are known. If it means every address, so are this machine's own names and
            all IP addresses.
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
    """Return why a request is refused; None if it is allowed."""
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
    """Return whether a ``Host`` header names loopback or the address that the server listens on.

    The names of loopback always count, because ssh may forward the dashboard. The port does not
    matter. A server that listens everywhere accepts the names of this machine, and every
    literal IP address: DNS rebinding needs a name.
    """
    found = _HOST.fullmatch(given.lower())
    if found is None:
        return False
    name = _canonical(found["six"] or found["name"])
    if name in {*LOOPBACK, _canonical(host)}:
        return True
    return host in EVERYWHERE and (_is_address(name) or name in _names_of_this_machine())


def _is_a_link(environ: WSGIEnvironment) -> bool:
    """Return whether the user followed a link to the dashboard: the page with the link cannot read it."""
    said = environ.get("HTTP_SEC_FETCH_MODE"), environ.get("HTTP_SEC_FETCH_DEST"), environ["REQUEST_METHOD"]
    return said == ("navigate", "document", "GET")


def _canonical(name: str) -> str:
    """Return a host name or address in canonical form, for comparison."""
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
    """Return this machine's name and full name. They are looked up on first use, which may take seconds."""
    return frozenset(_canonical(name) for name in (socket.gethostname(), socket.getfqdn()))


def _short(text: str) -> str:
    """Return text of a request in a form that can be quoted: shortened, in ASCII."""
    return ascii(text if len(text) <= 80 else f"{text[:80]}...")
