"""``nasgrow storage check``: is a database fit for a study?"""

from __future__ import annotations

import click

from nasgrow.search.check import check_storage
from nasgrow.search.storage import FILE_VARIABLE, URL_VARIABLE, given_url
from nasgrow.strict import has_password


def check(url: str | None) -> int:
    """Test a database and say what works; return the exit code."""
    url = url or given_url()
    if not url:
        raise ValueError(f"storage: give a URL, or set {URL_VARIABLE} or {FILE_VARIABLE}")
    if url != given_url() and has_password(url):
        click.echo(
            f"warning: others on this machine can see a password on the command line: set {URL_VARIABLE} or "
            f"{FILE_VARIABLE} instead",
            err=True,
        )
    for line in check_storage(url):
        click.echo(line)
    return 0
