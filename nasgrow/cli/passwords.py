"""Warn of passwords on the command line, where other users can read them."""

from __future__ import annotations

import click

from nasgrow.redact import has_password


def warn_of_password(url: str) -> None:
    """Warn if a URL that was given on the command line has a password."""
    if has_password(url):
        click.echo(
            "warning: others on this machine, and in a cluster's list of jobs, can see a password on the "
            "command line: set NASGROW_STORAGE or NASGROW_STORAGE_FILE instead",
            err=True,
        )
