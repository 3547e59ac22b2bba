"""The ``nasgrow`` command.

Commands import what they need when they run, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nasgrow")
def cli() -> None:
    """Search for the best way to grow a transformer while it trains."""


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def verify(as_json: bool) -> None:
    """Check that every expansion preserves the function of every variant.

    Exit code 1 if anything is not preserved, or if no gradient reaches new parameters.
    """
    from nasgrow.cli import verify as command

    sys.exit(command.run(as_json))


def main() -> None:
    """Run the command line; a mistake of the user's is one line on standard error and exit code 2."""
    try:
        sys.exit(cli(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message())
    except ValueError as error:
        _fail(str(error))
    except (KeyboardInterrupt, click.Abort):
        click.echo("nasgrow: interrupted", err=True)
        sys.exit(130)


def _fail(message: str) -> NoReturn:
    click.echo(f"nasgrow: {message}", err=True)
    sys.exit(2)
