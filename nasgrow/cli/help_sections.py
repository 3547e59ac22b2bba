"""The help of ``nasgrow``, with commands grouped by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click


class Sections(click.Group):
    """A group whose help lists its commands in sections, each with its whole summary."""

    def __init__(self, *, sections: Mapping[str, Sequence[str]], **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections one after the other."""
        for title, names in self.sections.items():
            rows = [(name, self.commands[name].get_short_help_str(limit=10_000)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)
