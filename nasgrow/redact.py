"""Remove passwords and other secrets of URLs from texts.

Every message passes through this module, so its run time is linear in the length of the text.
"""

from __future__ import annotations

import re
from itertools import pairwise

_URL = re.compile(r"\s['\"]?[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
"""The start of a further URL in a line: white space, perhaps a quote, a scheme and ``:/``.

White space is only at the start of a match, so the search takes linear time.
"""
_SIGN = re.compile(r"[?&;=]")
_SECRET = re.compile(r"pass|pwd|secret|token|key|sig|credential|auth", re.IGNORECASE)
_END = re.compile(r"[&\s]")
_FILES = re.compile(r"([?&])(?:passfile|sslkey)=[^&]*")
"""Fields of a PostgreSQL URL that name a file with a secret."""
_NO_HOST = re.compile(r"[^/]*:///")
"""The start of a URL without a host, and so without a user: the rest is a path, such as SQLite's."""


def redact(text: str) -> str:
    """Replace the user and password of each URL in a text, and the secrets in its query, by ``***``."""
    return _without_queries("\n".join(_without_users(line) for line in text.split("\n")))


def has_password(url: str) -> bool:
    """Return whether a URL holds a password or another secret, not only a user's name.

    If in doubt, return True: any @ may end a password, unless the URL names no host. A field of the
    query counts if its name looks like a secret's, except those that name a file (:data:`_FILES`).
    """
    url = _FILES.sub(r"\1", url)
    shown = _without_queries(url) if _NO_HOST.match(url) else redact(url)
    return shown not in (url, re.sub(r"://[^:@/]*@", "://***@", url))


def _without_users(line: str) -> str:
    """Remove everything that may be the user and password of a URL from a line.

    A password may hold quotes, slashes and @. A URL that was parsed as a path has only one slash. So
    everything from a URL's start up to the last @ before the next URL counts as user and password.
    """
    starts = [0, *(match.start() for match in _URL.finditer(line)), len(line)]
    parts = [line[start:end] for start, end in pairwise(starts)]
    return "".join(map(_without_user, parts))


def _without_user(part: str) -> str:
    """Remove user and password from a part of a line with one URL, or several without spaces between them."""
    colon, at = part.find(":/"), part.rfind("@")
    if colon < 0 or at < colon:
        return part
    user = colon + 1
    while part[user] == "/":
        user += 1
    return f"{part[:user]}***{part[at:]}"


def _without_queries(text: str) -> str:
    """Remove the values in ``?name=value&name=value`` whose names look like a secret's."""
    kept: list[str] = []
    done, name = 0, None  # the end of the part copied to ``kept``, and the start of the current name
    for match in _SIGN.finditer(text):
        if match.start() < done:
            continue  # within a value that was removed
        if match.group() == "=":
            if name is not None and _SECRET.search(text, name, match.start()):
                end = _END.search(text, match.end())
                kept += text[done : match.end()], "***"
                done = len(text) if end is None else end.start()
            name = None
        elif match.group() != "?" or name is None:  # a name may hold a question mark
            name = match.end()
    return "".join([*kept, text[done:]])
