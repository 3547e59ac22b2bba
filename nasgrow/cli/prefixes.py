"""``nasgrow prefixes``: list, verify and prune the prefix cache, the training states that runs share."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from nasgrow.cli.console import plain_table, study_console
from nasgrow.cli.durations import duration
from nasgrow.cli.views import one_line
from nasgrow.errors import UserError
from nasgrow.training.atomic_files import to_json
from nasgrow.training.prefixes import CachedState, StateStore


def open_store(folder: Path) -> StateStore:
    """Open the prefix cache in a folder; raise ``UserError`` if there is no such folder."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no prefix cache here; studies make it beside their folders")
    return StateStore(folder, float("inf"))


def show(folder: Path, as_json: bool) -> int:
    """List the cached states as a table or JSON, sorted by charged FLOPs, the most first; return 0.

    Raises:
        UserError: There is no such folder.
    """
    entries = sorted(open_store(folder).entries(), key=lambda entry: -entry.about["charged"])
    if as_json:
        print(to_json([asdict(entry) for entry in entries], indent=2))
        return 0
    headings = ("state", "budget", "FLOPs", "events", "seed", "MB", "uses", "last used")
    table = plain_table(headings, last="shape")
    for entry in entries:
        table.add_row(
            entry.key[:12],
            f"{fraction:.1%}" if isinstance(fraction := entry.about.get("fraction"), float) else "?",
            f"{entry.about['charged']:.3g}",
            _said(entry, "events"),
            _said(entry, "seed"),
            f"{entry.size / 1e6:.2f}",
            str(entry.uses),
            f"{duration(time.time() - entry.used)} ago",
            one_line(_said(entry, "shape")),
        )
    console = study_console()
    console.print(table)
    console.print(f"{folder}: {_amount(len(entries), sum(entry.size for entry in entries))}")
    return 0


def verify(folder: Path) -> int:
    """Check the hashes of every state; return the exit code, 1 if one is damaged."""
    store = open_store(folder)
    keys = list(store)
    damaged = 0
    for key in keys:
        fault = store.fault(key)
        if fault is not None and store.holds(key):
            damaged += 1
            print(f"{store.path(key)}: {fault}")
    print(f"{folder}: {len(keys) - damaged} of {len(keys)} states are intact")
    return 1 if damaged else 0


def prune(folder: Path, gigabytes: float | None) -> int:
    """Remove damaged states and remains of dead processes; return 0.

    With ``gigabytes``, also remove the least valuable states until the rest fits.
    """
    store = open_store(folder)
    store.sweep()
    damaged = [key for key in store if store.fault(key) is not None]
    for key in damaged:
        store.drop(key)
    many = 0 if gigabytes is None else store.prune(gigabytes * 1e9)
    left = _amount(sum(1 for _ in store), store.size())
    print(f"{folder}: removed {len(damaged)} damaged and {many} other states; {left} left")
    return 0


def _said(entry: CachedState, name: str) -> str:
    """Return a field of a state's description as safe text: any process may have written it."""
    text = str(entry.about.get(name, "?"))[:200]
    return text if text.isprintable() else ascii(text)


def _amount(states: int, size: int) -> str:
    return f"{states} state{'' if states == 1 else 's'}, {size / 1e9:.3g} GB"
