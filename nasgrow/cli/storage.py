"""``nasgrow storage check``: test whether a database can hold a study."""

from __future__ import annotations

import click

from nasgrow.cli.passwords import warn_of_password
from nasgrow.errors import UserError
from nasgrow.study.storage import FILE_VARIABLE, URL_VARIABLE, check_storage, given_url


def check(url: str | None) -> int:
    """Test a database, by default that of the environment, and print what works; return 0.

    Raises:
        UserError: Something does not work, or there is no URL.
    """
    url = url or given_url()
    if not url:
        raise UserError(f"storage: give a URL, or set {URL_VARIABLE} or {FILE_VARIABLE}")
    if url != given_url():
        warn_of_password(url)
    for line in check_storage(url):
        click.echo(line)
    return 0
