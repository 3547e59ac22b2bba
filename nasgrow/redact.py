"""Texts without the secrets of the URLs in them.

Every message passes through here, whatever it quotes: the work grows with a text's length and no faster.
"""

from __future__ import annotations

import re
from itertools import pairwise

_URL = re.compile(r"\s['\"]?[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
"""Where a URL begins after another; no two matches begin at one space, and none has two."""
_SIGN = re.compile(r"[?&;=]")
_SECRET = re.compile(r"pass|pwd|secret|token|key|sig|credential|auth", re.IGNORECASE)
_END = re.compile(r"[&\s]")


def redact(text: str) -> str:
    """A text without the user and password of a URL in it, nor what its query names as a secret."""
    return _without_queries("\n".join(_without_users(line) for line in text.split("\n")))


def has_password(url: str) -> bool:
    """Whether a URL holds a password, and not only a user's name."""
    return redact(url) not in (url, re.sub(r"://[^:@/]*@", "://***@", url))


def _without_users(line: str) -> str:
    """A line without what may be the user and password of each URL in it.

    Passwords may hold quotes, slashes, and signs like @; a URL that was taken for a path has one slash. So
    everything up to a line's last @ may be one, but for what stands before another URL.
    """
    starts = [0, *(match.start() for match in _URL.finditer(line)), len(line)]
    parts = [line[start:end] for start, end in pairwise(starts)]
    return "".join(map(_without_user, parts))


def _without_user(part: str) -> str:
    """A part of a line that has one URL, or several that no space divides."""
    colon, at = part.find(":/"), part.rfind("@")
    if colon < 0 or at < colon:
        return part
    user = colon + 1
    while part[user] == "/":
        user += 1
    return f"{part[:user]}***{part[at:]}"


def _without_queries(text: str) -> str:
    """A text without the values of ``?name=value&name=value`` whose names tell a secret."""
    kept: list[str] = []
    done, name = 0, None  # what is copied to ``kept``, and where the name begins that is being read
    for match in _SIGN.finditer(text):
        if match.start() < done:
            continue  # within a value that was left out
        if match.group() == "=":
            if name is not None and _SECRET.search(text, name, match.start()):
                end = _END.search(text, match.end())
                kept += text[done : match.end()], "***"
                done = len(text) if end is None else end.start()
            name = None
        elif match.group() != "?" or name is None:  # a name may hold a question mark
            name = match.end()
    return "".join([*kept, text[done:]])
