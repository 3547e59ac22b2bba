"""``nasgrow spaces``: list the built-in spaces, or print one."""

from __future__ import annotations

import textwrap

from nasgrow.errors import UserError
from nasgrow.spaces.builtin import built_in, description


def run(name: str | None) -> int:
    """List the built-in spaces, or print the file of the one with this name; return 0."""
    spaces = built_in()
    if name is None:
        for one, path in spaces.items():
            print(one)
            print(textwrap.fill(description(path), 100, initial_indent="  ", subsequent_indent="  "))
        print("\nA study names one (space: compound), or changes it (space: {from: compound, events: 1}).")
        return 0
    if name not in spaces:
        raise UserError(f"{name!r} is not a built-in space; there are {', '.join(spaces)}")
    print(spaces[name].read_text(encoding="utf-8"), end="")
    return 0
